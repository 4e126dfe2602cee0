"""Where an operation was recorded: the module that runs (from torch's global module hooks) and the user's line."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from dsf.intent.tape import Scope, Site

__all__ = ["here", "hook_modules", "site"]

NEAR = 6  # frames between an operation and the user's own module that called it through torch's modules
FAR = 200
OUTSIDE = Scope()


Names = dict[int, tuple["weakref.ref[torch.nn.Module]", Scope]]  # by the module's id, checked by the reference


class _Here(threading.local):
    """What this thread is inside of: the modules that run with their scopes, outermost first, and for the outermost
    one the names of what it holds and the line that called it.

    Torch's backward runs in the calling thread, so that the tape stays in order.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[torch.nn.Module, Scope]] = []
        self.scope = OUTSIDE
        self.names: Names = {}
        self.caller: Site | None = None
        torch.autograd.set_multithreading_enabled(False)


here = _Here()
_names: weakref.WeakKeyDictionary[torch.nn.Module, Names] = weakref.WeakKeyDictionary()


def _enter(module: torch.nn.Module, args: Any) -> None:
    stack = here.stack
    if not stack:
        here.caller = _user_site(sys._getframe(1), FAR)
        here.names = _names.get(module) or _name(module)
    found = here.names.get(id(module))
    scope = found[1] if found is not None and found[0]() is module else _late(module)
    here.scope = scope
    stack.append((module, scope))


def _name(root: torch.nn.Module) -> Names:
    """The scopes of everything in *root*, kept as long as it lives."""
    found = _names[root] = {id(m): (weakref.ref(m), Scope(path, type(m).__name__)) for path, m in root.named_modules()}
    return found


def _late(module: torch.nn.Module) -> Scope:
    """The scope of a module added since, or of one that the outermost does not hold: that is named under its caller."""
    root = here.stack[0][0] if here.stack else module
    here.names = _name(root)
    found = here.names.get(id(module))
    if found is not None:
        return found[1]
    caller, name = here.scope.path, type(module).__name__
    return Scope(f"{caller}.{name}" if caller else name, name)


def _leave(module: torch.nn.Module, args: Any, output: Any) -> None:
    """Also called when a forward raised; drops what an unhooked exit may have left above *module*."""
    stack = here.stack
    while stack and stack.pop()[0] is not module:
        pass
    here.scope = stack[-1][1] if stack else OUTSIDE


def hook_modules() -> Iterator[Any]:
    """Follow every module call of the process; the answers' `remove()` undoes it."""
    yield nn_module.register_module_forward_pre_hook(_enter)
    yield nn_module.register_module_forward_hook(_leave, always_call=True)


def _library_folders() -> tuple[str, ...]:
    names = ("torch", "transformers", "accelerate", "safetensors")
    specs = [s for n in names if (s := find_spec(n)) is not None and s.origin]
    own = os.path.dirname(os.path.dirname(__file__))
    return (*(os.path.dirname(s.origin) + os.sep for s in specs if s.origin), own + os.sep, "<")


_folders = _library_folders()
_is_library: dict[CodeType, bool] = {}
_sites: dict[tuple[CodeType, int], Site] = {}


def _user_site(frame: FrameType | None, depth: int) -> Site | None:
    """The innermost frame outside the libraries, at most *depth* frames up."""
    while frame is not None and depth:
        code = frame.f_code
        library = _is_library.get(code)
        if library is None:
            library = _is_library[code] = code.co_filename.startswith(_folders)
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
    if _is_library.get(code) is False:
        found = _sites.get((code, frame.f_lineno))
        if found is not None:
            return found
    if here.stack:
        return _user_site(frame, NEAR) or here.caller
    return _user_site(frame, FAR)
