from __future__ import annotations

import pytest

from photinus.core.errors import UsageError
from photinus.report.ledger import Ledger, audit

Entry = tuple[str, dict]


def entry(op: str, **fields) -> Entry:
    return op, {"run": "r", "term": 1, "phase": 0, "slot": 0, "lease": 1, "sequence": 0, **fields}


def push_entries(sequence: int, **fields) -> list[Entry]:
    push_fields = {
        "sequence": sequence,
        "version": sequence + 1,
        "position": 8 * sequence,
        **fields,
    }
    return [entry(op, **push_fields) for op in ("push", "apply", "ack")]


def row_entries(sequence: int, position: int, examples: int = 8, **fields) -> list[Entry]:
    return push_entries(sequence, position=position, examples=examples, **fields)


def audit_of(tmp_path, entries: list[Entry]):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for op, fields in entries:
        ledger.write(op, **fields)
    ledger.close()
    assert ledger.lost == 0
    return audit(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("last", ["ack", "miss", "hello"])
def test_what_a_worker_is_answered_stands_in_the_file_before(tmp_path, last):
    """One write for all that became of a push."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.write("push", sequence=0, waits=True)
    ledger.write("apply", sequence=0, waits=True)
    assert path.read_bytes() == b""
    ledger.write(last, sequence=0)
    assert [line.split(b'"')[3].decode() for line in path.read_bytes().splitlines()] == [
        "push",
        "apply",
        last,
    ]
    ledger.close()


GOOD = [entry("hello"), *push_entries(0), *push_entries(1)]
BEGUN = [entry("rest", phase=1, version=0)]


def test_an_ordinary_run_is_exact(tmp_path):
    result = audit_of(tmp_path, GOOD)
    assert result.is_exact
    assert str(result) == (
        "2 applied, 2 acknowledged, 0 duplicates, 0 fenced, 1 leases: each exactly once"
    )


FINE = {
    "resent after a lost answer": [*GOOD, entry("push", sequence=1), entry("ack", sequence=1)],
    "the seat taken again": [*GOOD, entry("hello", lease=2), *push_entries(2, lease=2)],
    "a round applies what arrived before the lease ended": [
        entry("hello"), entry("push"), entry("hello", lease=2, sequence=1), entry("apply"),
    ],
    "a fenced push is not applied": [entry("hello", lease=2), entry("push", lease=1)],
    "a new term starts again from its checkpoint": [
        *GOOD, entry("hello", term=2, sequence=1), *push_entries(1, term=2, version=1),
    ],
    "a new term continues with the rows of its checkpoint": [
        *row_entries(0, 8), *row_entries(1, 16), entry("hello", term=2, sequence=1, position=8),
        *row_entries(1, 16, term=2, version=1),
    ],
    "a seat continues behind what was dropped": [
        *row_entries(0, 8), entry("miss", sequence=1, position=16, dropped=True),
        entry("hello", term=2, sequence=2, position=16), *row_entries(2, 24, term=2),
    ],
    "all who knew were lost, and it went back": [
        *GOOD, entry("back", version=1), entry("hello", lease=2, sequence=2),
        *push_entries(2, lease=2, version=2, position=8),
    ],
    "each phase counts for itself": [*GOOD, *push_entries(0, phase=1)],
    "a rest continues with the rows of its start": [
        *row_entries(0, 8), *row_entries(1, 16), *BEGUN,
        entry("hello", phase=1, lease=2, sequence=0, version=0, position=16),
        *row_entries(0, 24, phase=1, lease=2),
    ],
    "a rest whose agreements were all lost continues where its start ended": [
        *row_entries(0, 8), *BEGUN, *row_entries(0, 16, phase=1), entry("back", phase=1, version=0),
        entry("hello", phase=1, lease=2, sequence=1, version=0, position=8),
        *row_entries(1, 16, phase=1, lease=2, version=1),
    ],
    "rows once more after a push that came too late": [
        *row_entries(0, 8), entry("miss", sequence=1, examples=8, position=16),
        *row_entries(2, 24, 16),
    ],
    "the next rows after a push that was dropped": [
        *row_entries(0, 8), entry("miss", sequence=1, position=16, dropped=True),
        *row_entries(2, 24),
    ],
    "fragments of the same rows": [
        *row_entries(0, 8, fragment=[0, 4]), *row_entries(1, 8, fragment=[4, 8]),
    ],
    "an acknowledgement before its round closes": [entry("push"), entry("ack"), entry("apply")],
}  # fmt: skip


@pytest.mark.parametrize("case", FINE)
def test_what_the_protocol_allows_is_no_offence(tmp_path, case):
    assert audit_of(tmp_path, FINE[case]).offences == []


def test_what_was_given_up_is_counted(tmp_path):
    result = audit_of(tmp_path, [*GOOD, entry("back", version=1)])
    assert (result.applied, result.undone) == (2, 1)
    assert str(result).startswith(
        "2 applied, 2 acknowledged, 0 duplicates, 0 fenced, 1 leases, 1 u"
    )


def resume_entry(version, position, **fields) -> Entry:
    return entry("hello", term=2, version=version, position=position, **fields)


TWENTY = [e for n in range(20) for e in row_entries(n, 8 * n + 8)]
ONE_TERM = [entry("hello", version=0, position=0), *TWENTY]


def test_what_lay_behind_the_checkpoint_of_a_resume_is_undone(tmp_path):
    again = [e for n in range(5) for e in row_entries(n, 120 + 8 * n, term=2, version=15 + n)]
    result = audit_of(tmp_path, [*ONE_TERM, resume_entry(14, 112), *again])
    assert result.offences == []
    assert (result.applied, result.undone, result.held) == (25, 6, 19)
    assert ", 6 undone: each exactly once" in str(result)


def test_a_term_that_names_no_version_is_known_by_its_first_push(tmp_path):
    hello = entry("hello", term=2, sequence=0, position=112)
    result = audit_of(tmp_path, [*ONE_TERM, hello, *row_entries(0, 120, term=2, version=15)])
    assert result.offences == []
    assert (result.applied, result.undone, result.held) == (21, 6, 15)


@pytest.mark.parametrize("names_version", [True, False])
def test_rows_behind_the_version_of_a_resume_are_in_no_model(tmp_path, names_version):
    """Version 6 holds the rows up to 48; a term that continues from 96 leaves 48 of them out."""
    hello = resume_entry(6, 96)
    if not names_version:
        hello[1].pop("version")
    result = audit_of(tmp_path, [*ONE_TERM, hello, *row_entries(0, 104, term=2, version=7)])
    assert "rows skipped: slot 0 continues from 96" in result.offences[0]
    assert result.offences[0].startswith("line 62:")


def test_rows_before_the_version_of_a_resume_are_in_the_model_already(tmp_path):
    result = audit_of(tmp_path, [*ONE_TERM, resume_entry(6, 40)])
    assert result.offences == ["line 62: rows twice: slot 0 continues from 40, done are 48"]


def test_a_resume_in_an_earlier_phase_undoes_all_of_the_later_one(tmp_path):
    later = [e for n in range(3) for e in row_entries(n, 8 * n + 8, phase=1)]
    result = audit_of(tmp_path, [*ONE_TERM, *later, resume_entry(18, 144)])
    assert result.offences == []
    assert (result.applied, result.undone) == (23, 5)


def test_what_a_replaced_coordinator_still_applies_is_in_no_model(tmp_path):
    result = audit_of(tmp_path, [*ONE_TERM, resume_entry(20, 160), *row_entries(20, 168)])
    assert result.offences == []
    assert (result.applied, result.undone) == (21, 1)


def test_rows_that_were_given_up_with_all_who_knew_them_are_not_done(tmp_path):
    lost = [entry("back", version=6), entry("hello", lease=2, sequence=20, version=6, position=96)]
    result = audit_of(tmp_path, [*ONE_TERM, *lost])
    assert result.offences == ["line 63: rows skipped: slot 0 continues from 96, done are 48"]


BAD = {
    "doubled": ([*GOOD, entry("apply", sequence=1)], "line 8: applied 2 times: term 1, phase 0"),
    "lost": (
        [*GOOD, entry("push", sequence=2), entry("ack", sequence=2)],
        "acknowledged but never",
    ),
    "unheard of": ([entry("apply", sequence=0)], "applied without a push"),
    "zombie": (
        [entry("hello", lease=2), entry("push", lease=1), entry("apply", lease=1)],
        "line 3: applied without a push under a lease that held",
    ),
    "lease given twice": ([entry("hello"), entry("hello")], "lease 1 of slot 0 is not above"),
    "gap": ([*GOOD, *push_entries(3)], "slot 0: sequence 3 after 1"),
    "gap after a grant": ([entry("hello"), *push_entries(1)], "sequence 1 after -1"),
    "version falls": ([*GOOD, *push_entries(2, version=1)], "version 1 after 2"),
    "rows skipped": (
        [*row_entries(0, 8), *row_entries(1, 24)],
        "rows skipped: slot 0, from 8 to 16",
    ),
    "rows of a late push skipped": (
        [*row_entries(0, 8), entry("miss", sequence=1, position=16), *row_entries(2, 24)],
        "rows skipped: slot 0, from 8 to 16",
    ),
    "rows skipped where a rest begins": (
        [*row_entries(0, 8), *BEGUN, *row_entries(0, 24, phase=1)],
        "rows skipped: slot 0, from 8 to 16",
    ),
    "rows twice where a rest begins": (
        [*row_entries(0, 8), *BEGUN, *row_entries(0, 12, phase=1)],
        "rows twice: slot 0, from 8 to 4",
    ),
    "rows skipped at a grant of a rest": (
        [*row_entries(0, 8), *BEGUN, entry("hello", phase=1, version=0, position=16)],
        "line 5: rows skipped: slot 0 continues from 16, done are 8",
    ),
    "rows skipped at a grant": (
        [entry("hello", position=0), *row_entries(0, 16)],
        "rows skipped: slot 0, from 0 to 8",
    ),
    "rows skipped between terms": (
        [*row_entries(0, 8), entry("hello", term=2, sequence=1, position=16)],
        "line 4: rows skipped: slot 0 continues from 16, done are 8",
    ),
    "rows twice": ([*row_entries(0, 8), *row_entries(1, 12)], "rows twice: slot 0, from 8 to 4"),
    "position falls": ([*GOOD, *push_entries(2, position=0)], "position 0 after 8"),
}


@pytest.mark.parametrize("case", BAD)
def test_every_breach_is_found_and_named(tmp_path, case):
    entries, expected = BAD[case]
    result = audit_of(tmp_path, entries)
    assert not result.is_exact
    assert expected in result.offences[0]
    assert "1 offences" in str(result)


def test_a_damaged_line_is_an_offence_but_a_cut_last_one_is_none(tmp_path):
    audit_of(tmp_path, GOOD)
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"op": "odd"}\nnonsense\n{"op": "pus')
    assert audit(tmp_path / "ledger.jsonl").offences == [
        "line 8: is no entry",
        "line 9: is no entry",
    ]
    with pytest.raises(UsageError, match="op must be one of hello"):
        Ledger(tmp_path / "x").write("odd")
