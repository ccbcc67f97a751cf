"""The function of a Python target: imported, and checked for how it takes its request."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from quintain.config.python_imports import load_callable
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError

AnswerFunction = Callable[[InvokeRequest], object]

#: What a function is given, for those who expect something else.
GIVEN = "it is given the request, a quintain InvokeRequest: its text is request.question, or that of request.messages"


def load_function(path: str, folder: Path) -> AnswerFunction:
    """Import the function ``module:name``.

    Raises `ConfigError`, also where it cannot take a request, as its signature shows.
    """
    function = load_callable(path, folder)
    _check_signature(path, function)
    return function


def is_about_the_request(error: BaseException, request: InvokeRequest) -> bool:
    """Whether the function failed because it took its request for something else, such as text."""
    if isinstance(error, AttributeError):
        return error.obj is request
    return isinstance(error, TypeError) and InvokeRequest.__name__ in str(error)


def _check_signature(path: str, function: Callable[..., object]) -> None:
    """Raise `ConfigError` if a function cannot take a request, or answers in a way that no function may."""
    if inspect.isgeneratorfunction(function):
        raise ConfigError(f"{path} yields without async: make it an `async def` that yields text, or return the text")
    try:
        signature = inspect.signature(function)
        with contextlib.suppress(Exception):
            # An annotation may be any expression, and fail as any.
            signature = inspect.signature(function, eval_str=True)
    except (TypeError, ValueError):
        # What is written in C may have none.
        return
    try:
        first = next(iter(signature.bind(None).arguments))
    except TypeError:
        raise ConfigError(f"{path}{signature} cannot be called with one argument: {GIVEN}") from None
    annotation = signature.parameters[first].annotation
    options = get_args(annotation) if get_origin(annotation) in {Union, types.UnionType} else (annotation,)
    if not any(_may_be_request(get_origin(option) or option) for option in options):
        raise ConfigError(f"{path}{signature} does not take what it is given: {GIVEN}")


def _may_be_request(annotation: object) -> bool:
    """Whether a value of this annotation may be a request; what is no class may be."""
    if not isinstance(annotation, type) or annotation in {Any, inspect.Parameter.empty}:
        return True
    try:
        return issubclass(InvokeRequest, annotation)
    except TypeError:
        # A protocol is no class that can be asked.
        return True


def wrong_uses(function: Any) -> list[str]:
    """Say where the source of a function takes its request for text; empty if it does not, or has no source.

    What a function does with its request after a test with `isinstance`, or by another name, is not seen.
    """
    if not inspect.isroutine(function) and not inspect.isclass(function):
        # An object that can be called is what its method is.
        function = getattr(function, "__call__", function)  # noqa: B004 -- its method is looked at
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return []
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    arguments = [*definition.args.posonlyargs, *definition.args.args][inspect.ismethod(function) :]
    name = next((argument.arg for argument in arguments), None)
    nodes = list(ast.walk(definition))
    mentions = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    tested = any(
        isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "hasattr", "getattr"} for node in nodes
    )
    if tested or any(not isinstance(node.ctx, ast.Load) for node in mentions):
        return []
    found = [ast.unparse(node) for node in nodes if any(_takes_for_text(node, one) for one in mentions)]
    return [f"`{expression.strip().splitlines()[0]}` takes the request for text; {GIVEN}" for expression in found[:1]]


def _takes_for_text(node: ast.AST, mention: ast.Name) -> bool:
    match node:
        case ast.Attribute(value=value, attr=name):
            return value is mention and not hasattr(InvokeRequest, name) and name not in InvokeRequest.model_fields
        case ast.Subscript(value=value) | ast.FormattedValue(value=value) | ast.For(iter=value):
            return value is mention
        case ast.comprehension(iter=value):
            return value is mention
        case ast.BinOp(left=left, right=right):
            return mention in {left, right}
        case ast.Call(func=ast.Name(id="len" | "str"), args=[argument]):
            return argument is mention
    return False
