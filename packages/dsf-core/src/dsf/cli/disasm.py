"""`dsf-cli disasm`: list a program, from a file or from a chip's kernel library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsf.cli.switches import common

if TYPE_CHECKING:
    from dsf.disassembly import Disassembly

__all__ = ["disasm"]


class _Sizes(click.ParamType):
    """Whole numbers with commas between them."""

    name = "sizes"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"'{value}' is not whole numbers with commas between them, like 128,576,576", param, context)


@click.command(short_help="List a program, from a file or from a chip's kernels.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--chip", required=True, help="A chip of `dsf-cli chips`, or a path.")
@click.option("--kernel", metavar="KIND", help="List what the chip's own library writes for a KIND such as matmul.")
@click.option("--shape", type=_Sizes(), help="The sizes that KIND has, with commas between them.")
@click.option("--dtype", help="The operands' number format. [default: the chip's preferred one]")
@click.option("--cycles", is_flag=True, help="After each instruction, its cycles and how often it runs.")
@click.option("--binary", metavar="OUT", type=click.Path(path_type=Path), help="Also write the program to OUT.")
@common
def disasm(
    file: Path | None,
    chip: str,
    kernel: str | None,
    shape: tuple[int, ...] | None,
    dtype: str | None,
    cycles: bool,
    binary: Path | None,
) -> Disassembly:
    """List the program in FILE, a listing or a binary, or the one that --chip's library writes for --kernel. A FILE of
    `-` is standard input.

    The program is checked against the chip's rules: operands, memories, alignments, flags, order. What it breaks is
    named with the listing's line, and the file's where that counts otherwise; else its predicted time stands at the
    end. What is printed can be read again.

    \b
    Kinds and their --shape:
      matmul, linear                     m,n,k
      attention                          batch,heads,kv_heads,queries,keys,head_dim
      rms_norm, layer_norm, softmax,
      gated_activation, sum, copy        rows,columns

    \b
    Examples:
      dsf-cli disasm --chip ascend-910b2 --kernel matmul --shape 128,576,576 --cycles
      dsf-cli disasm --chip acme-x1 --kernel softmax --shape 64,1000 --binary softmax.dsf
      dsf-cli disasm --chip acme-x1 softmax.dsf
    """
    if (file is None) == (kernel is None):
        raise click.UsageError("name one program: a FILE, or a --kernel with its --shape")
    if file is not None and (shape or dtype):
        raise click.UsageError("--shape and --dtype say what a --kernel is for; a FILE has its own")
    from dsf import disassembly
    from dsf.plugins import registry

    known = registry()
    view = known.view(known.chip(chip))
    if kernel is not None:
        program, author = disassembly.emitted(view, kernel, shape or (), dtype)
        places: tuple[int, ...] = ()
    elif file is not None:
        (program, places), author = disassembly.read_with_places(file), None
    found = disassembly.disassemble(program, view, author, cycles, places)
    if binary is not None:
        disassembly.write(program, binary)
    return found
