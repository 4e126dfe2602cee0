"""Where an operation was recorded: the module that runs (from torch's global module hooks) and the user's line."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as nn_module

from dsf.intent.tape import Scope, Site

__all__ = ["here", "hook_modules", "site"]

NEAR = 6  # frames between an operation and the user's own module that called it through torch's modules
FAR = 200
OUTSIDE = Scope()
LIBRARIES = ("torch", "transformers", "accelerate", "safetensors")


Names = dict[int, tuple["weakref.ref[torch.nn.Module]", Scope]]  # by the module's id, checked by the reference


class _Entry(NamedTuple):
    """A module that runs: its scope, whether a library defines it, and the user's line that it is called from."""

    module: torch.nn.Module | None
    scope: Scope
    library: bool
    site: Site | None


NOWHERE = _Entry(None, OUTSIDE, False, None)


class _Here(threading.local):
    """What this thread is inside of: the modules that run, outermost first, and the names of what the first one holds.

    Torch's backward runs in the calling thread, so that the tape stays in order.
    """

    def __init__(self) -> None:
        self.stack: list[_Entry] = []
        self.top = NOWHERE
        self.scope = OUTSIDE
        self.names: Names = {}
        torch.autograd.set_multithreading_enabled(False)


here = _Here()
_names: weakref.WeakKeyDictionary[torch.nn.Module, Names] = weakref.WeakKeyDictionary()


def _enter(module: torch.nn.Module, args: Any) -> None:
    stack = here.stack
    outer, library = here.top, _is_library(type(module).__module__)
    if not stack:
        here.names = _names.get(module) or _name(module)
        site = _user_site(sys._getframe(1), FAR)
    elif library and outer.library:
        site = outer.site
    else:
        site = _user_site(sys._getframe(1), NEAR) or outer.site
    found = here.names.get(id(module))
    scope = found[1] if found is not None and found[0]() is module else _late(module)
    here.scope = scope
    here.top = _Entry(module, scope, library, site)
    stack.append(here.top)


def _name(root: torch.nn.Module) -> Names:
    """The scopes of everything in *root*, kept as long as it lives."""
    found = _names[root] = {id(m): (weakref.ref(m), Scope(path, type(m).__name__)) for path, m in root.named_modules()}
    return found


def _late(module: torch.nn.Module) -> Scope:
    """The scope of a module added since, or of one that the outermost does not hold: that is named under its caller."""
    root = here.stack[0].module if here.stack else module
    assert root is not None
    here.names = _name(root)
    found = here.names.get(id(module))
    if found is not None:
        return found[1]
    caller, name = here.scope.path, type(module).__name__
    return Scope(f"{caller}.{name}" if caller else name, name)


def _leave(module: torch.nn.Module, args: Any, output: Any) -> None:
    """Also called when a forward raised; drops what an unhooked exit may have left above *module*."""
    stack = here.stack
    while stack and stack.pop().module is not module:
        pass
    here.top = stack[-1] if stack else NOWHERE
    here.scope = here.top.scope


def hook_modules() -> Iterator[Any]:
    """Follow every module call of the process; the answers' `remove()` undoes it."""
    yield nn_module.register_module_forward_pre_hook(_enter)
    yield nn_module.register_module_forward_hook(_leave, always_call=True)


def _library_folders() -> tuple[str, ...]:
    specs = [s for n in LIBRARIES if (s := find_spec(n)) is not None and s.origin]
    own = os.path.dirname(os.path.dirname(__file__))
    return (*(os.path.dirname(s.origin) + os.sep for s in specs if s.origin), own + os.sep, "<")


_folders = _library_folders()
_in_library: dict[CodeType, bool] = {}
_sites: dict[tuple[CodeType, int], Site] = {}


@cache
def _is_library(name: str) -> bool:
    """Whether a Python module of this name is a library's."""
    return name.partition(".")[0] in LIBRARIES


def _user_site(frame: FrameType | None, depth: int) -> Site | None:
    """The innermost frame outside the libraries, at most *depth* frames up."""
    while frame is not None and depth:
        code = frame.f_code
        library = _in_library.get(code)
        if library is None:
            library = _in_library[code] = code.co_filename.startswith(_folders)
        if not library:
            key = (code, frame.f_lineno)
            found = _sites.get(key)
            if found is None:
                found = _sites[key] = Site(code.co_filename, frame.f_lineno)
            return found
        frame, depth = frame.f_back, depth - 1
    return None


def site() -> Site | None:
    """The user's line that records now: near the operation, else the line that called the outermost module."""
    frame = sys._getframe(2)
    code = frame.f_code
    if _in_library.get(code) is False:
        found = _sites.get((code, frame.f_lineno))
        if found is not None:
            return found
    top = here.top
    if top.library:
        return top.site
    return _user_site(frame, NEAR) or top.site if here.stack else _user_site(frame, FAR)
