"""`dsf-cli`: each command parses, calls the library and returns a value; one place prints it, one place fails.

Results go to stdout, talk to stderr. Exit status: 0 fine, 1 it found something, 2 a wrong call, 3 a fault of ours.
Nothing here imports torch before a command needs it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from dsf import errors
from dsf.cli.chips import chips
from dsf.cli.disasm import disasm
from dsf.cli.explain import explain
from dsf.cli.intents import intents
from dsf.cli.isa import isa
from dsf.cli.run import run
from dsf.cli.switches import Switches, version_option
from dsf.cli.tables import present
from dsf.cli.tune import tune

__all__ = ["call", "commands", "main"]

FINE, FOUND, WRONG_CALL, OUR_FAULT, STOPPED = 0, 1, 2, 3, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@version_option
def commands() -> None:
    """Run PyTorch models on emulated AI accelerators, and see what they cost there.

    \b
    Examples:
      dsf-cli chips
      dsf-cli run --chip ascend-910b2 --model smollm2 "What is the capital of France?"
    """


@commands.result_callback()
@click.pass_obj
def _show(switches: Switches, value: object) -> int:
    try:
        present(value, as_json=switches.json)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
    return FOUND if getattr(value, "findings", ()) else FINE


commands.add_command(chips)
commands.add_command(run)
commands.add_command(intents)
commands.add_command(isa)
commands.add_command(disasm)
commands.add_command(explain)
commands.add_command(tune)


def main() -> None:
    """The console script."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; every failure has become a sentence on stderr."""
    switches = Switches(debug=bool(os.environ.get("DSF_DEBUG")))
    try:
        status = commands.main(list(arguments), prog_name="dsf-cli", standalone_mode=False, obj=switches)
    except click.Abort:  # what click makes of Ctrl-C
        return _say("stopped", STOPPED)
    except click.ClickException as mistake:
        mistake.show()
        return WRONG_CALL
    except errors.DsfError as error:
        _trace(switches)
        return _say(str(error), error.exit_status)
    except Exception as fault:  # noqa: BLE001  # the last place that can turn a fault into a sentence and a status
        _trace(switches)
        hint = "" if switches.debug else "; run again with --debug for the traceback"
        return _say(f"a fault in DSF: {type(fault).__name__}: {fault}{hint}", OUR_FAULT)
    return status if isinstance(status, int) else FINE


def _say(sentence: str, status: int) -> int:
    click.echo(f"dsf-cli: {sentence}", err=True)
    return status


def _trace(switches: Switches) -> None:
    if switches.debug:
        traceback.print_exc()


def _drop_the_rest() -> None:
    """Whoever read our output has closed it (`| head`): nothing is wrong, and Python must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
