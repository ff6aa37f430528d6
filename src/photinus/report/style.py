"""The style sheet of the report: light, dark, and print."""

STYLE = """
:root { color-scheme: light dark;
  --paper: #fdfdfb; --ink: #1c2330; --soft: #667085; --faint: #e6e7e3; --panel: #f5f5f1;
  --good: #1a7f4b; --bad: #c0392b; --warm: #b26a00;
  --c0: #2b6cb0; --c1: #d9730d; --c2: #2f855a; --c3: #a23b9a; --c4: #b7791f; --c5: #2a9d9d;
  --c6: #c53030; --c7: #6b5fc7; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171d; --ink: #e8eaee; --soft: #97a0b0; --faint: #2a2f3a; --panel: #1b1f27;
  --good: #5fd39a; --bad: #ff8a7a; --warm: #f0b35a;
  --c0: #6cb2f5; --c1: #ff9f4a; --c2: #6fd29c; --c3: #e08bd9; --c4: #e6c35c; --c5: #5fd0d0;
  --c6: #ff8a8a; --c7: #aaa0ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 40px 28px 80px; max-width: 1120px; background: var(--paper);
  color: var(--ink); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue",
  "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.02em; margin: 0; font-weight: 650; }
h2 { font-size: 13px; letter-spacing: .07em; text-transform: uppercase; color: var(--soft);
  font-weight: 600; margin: 52px 0 14px; padding-top: 14px; border-top: 1px solid var(--faint); }
p { margin: 6px 0; max-width: 72ch; } .soft { color: var(--soft); }
.state { font-size: 13px; font-weight: 600; padding: 2px 10px; border-radius: 99px;
  border: 1px solid currentColor; vertical-align: 5px; margin-left: 10px; color: var(--warm);
  letter-spacing: 0; }
.state.done { color: var(--good); } .state.failed { color: var(--bad); }
.facts { display: flex; flex-wrap: wrap; gap: 14px 44px; margin: 30px 0 0; }
.facts div { min-width: 110px; } .facts .n { font-size: 29px; line-height: 1.15;
  letter-spacing: -.02em; font-weight: 600; white-space: nowrap; }
.facts .first .n { color: var(--c0); } .facts small { color: var(--soft); font-size: 13px;
  display: block; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(310px, 1fr));
  gap: 28px 32px; }
figure { margin: 0; min-width: 0; } figcaption { font-size: 14px; line-height: 1.35; }
figcaption b { font-weight: 600; } figcaption span { color: var(--soft); }
.legend { font-size: 12px; color: var(--soft); display: flex; flex-wrap: wrap; gap: 0 14px;
  margin: 1px 0 6px; } .legend b { color: var(--ink); font-weight: 600; }
.key { display: inline-block; width: 12px; height: 3px; border-radius: 2px; margin: 0 5px 3px 0; }
.k0 { background: var(--c0); } .k1 { background: var(--c1); } .k2 { background: var(--c2); }
.k3 { background: var(--c3); } .k4 { background: var(--c4); } .k5 { background: var(--c5); }
.k6 { background: var(--c6); } .k7 { background: var(--c7); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
figure.wide svg { min-width: 640px; }
svg text { font-size: 10.5px; fill: var(--soft); } svg .u { font-style: italic; }
.grid { stroke: var(--faint); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); }
.s3 { stroke: var(--c3); } .s4 { stroke: var(--c4); } .s5 { stroke: var(--c5); }
.s6 { stroke: var(--c6); } .s7 { stroke: var(--c7); }
.dot { fill: var(--paper); stroke-width: 1.8; }
.work, .wait { shape-rendering: crispEdges; }
.work { fill: var(--c0); } .wait { fill: var(--c0); opacity: .2; }
.right { fill: var(--c0); } .wrong { fill: var(--c1); } svg .cell { fill: var(--ink); }
table { border-collapse: collapse; font-size: 13.5px; width: 100%; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 12.5px; }
th, td { padding: 5px 16px 5px 0; border-bottom: 1px solid var(--faint); vertical-align: top; }
.r { text-align: right; white-space: nowrap; } .wide { overflow-x: auto; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 8px 48px; }
.filters { image-rendering: pixelated; width: 100%; border-radius: 4px; }
pre { background: var(--panel); border-radius: 6px; padding: 12px 16px; overflow-x: auto;
  font: 13px/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
.log td:first-child { width: 90px; color: var(--soft); } .Warned, .CheckpointFailed, .WorkerLost {
  color: var(--warm); }
footer { margin-top: 60px; color: var(--soft); font-size: 12.5px; }
@media (max-width: 520px) { .two, .charts { grid-template-columns: minmax(0, 1fr); }
  body { padding: 24px 16px 60px; } th, td { padding-right: 10px; }
  .stacks thead, .stacks td:empty { display: none; } .log td { overflow-wrap: anywhere; }
  .stacks tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--faint); }
  .stacks td { display: flex; justify-content: space-between; gap: 16px; padding: 1px 0;
    border: 0; white-space: normal; text-align: right; }
  .stacks td::before { content: attr(data-name); color: var(--soft); text-align: left;
    flex: none; } }
@media print { body { max-width: none; padding: 0; } h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; } }
"""
