"""The commands `kernels build` and `kernels source`."""

from __future__ import annotations

from pathlib import Path

import click

_FLAVOURS = ("wide", "narrow", "groups")


@click.group()
def kernels() -> None:
    """Compile the kernels of OpenCL devices before a run, as FPGAs need it."""


@kernels.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--device", default="opencl", metavar="NAME", help="opencl, or opencl:PLATFORM:N.")
@click.option(
    "--binary",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What a board's own compiler made (.aocx, .xclbin), instead of compiling here.",
)
@click.option("--flavour", type=click.Choice(_FLAVOURS), help="Variant of the kernels.")
def build(folder: Path, device: str, binary: Path | None, flavour: str | None) -> None:
    """Write a device's kernels and their manifest to a folder, once they have passed the test.

    Workers use them where PHOTINUS_OPENCL_KERNELS names the folder.
    """
    from photinus.devices.opencl.binaries import VARIABLE
    from photinus.devices.opencl.binaries import build as write
    from photinus.devices.opencl.platforms import chosen

    target = chosen(device)
    path = write(target, folder, binary, flavour or "")
    click.echo(f"{path}: for {target.title}; workers use it with {VARIABLE}={folder.absolute()}")


@kernels.command()
def source() -> None:
    """Print the kernels' text, for a board's own compiler."""
    from photinus.devices.opencl.engine import source as text

    click.echo(text(), nl=False)
