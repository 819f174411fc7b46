"""How a request is read and how a failure is told: strict JSON, and one sentence whatever went wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from regard.errors import RegardError, nearest
from regard.serve.refusal import Refusal, broken
from regard.serve.schema import Error

log = logging.getLogger("regard.serve")

DEEPEST = 32
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error} for status in (400, 401, 404, 405, 408, 413, 415, 421, 422, 429, 499, 500, 503, 504)
}


class Answer(Response):
    """JSON; half characters become `?`, which no UTF-8 can hold otherwise."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


class Strict(APIRoute):
    """A route. Who is asked with a body is called with what it says and the request, and nothing in between."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        schema: type[BaseModel] | None = self.body_field.field_info.annotation if self.body_field else None  # type: ignore[assignment]

        async def handle(request: Request) -> Response:
            try:
                if schema is None:
                    return await handler(request)
                asked = schema.model_validate(await content_of(request))
                answer: Response = await self.endpoint(asked, request)
                return answer
            except ValidationError as error:
                no = Refusal(422, "invalid", sentence(error.errors(), schema))
            except RequestValidationError as error:  # of the address: in its path, or behind it
                no = Refusal(422, "invalid", sentence([{**one, "loc": one["loc"][1:]} for one in error.errors()]))
            except Refusal as refusal:
                no = refusal
            except RegardError as error:
                no = Refusal(422, "unanswerable", str(error))
            except Exception:
                number = request.scope["request_id"]
                log.exception("request %s failed", number)
                no = broken(number)
            return told(no)

        return handle


def told(no: Refusal) -> Answer:
    return Answer(no.json, status_code=no.status, headers=no.headers)


async def content_of(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "no_json", "the body must be JSON; send the header Content-Type: application/json")
    return parsed(await request.body())


def parsed(body: bytes) -> Any:
    """No NaN, no name twice, no deep nesting: what two readers might understand differently is not read at all."""
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_once_each)
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise Refusal(422, "no_json", "the body is no JSON in UTF-8; look at its quotes, commas and braces") from None
    if _deep(found):
        raise _too_deep()
    return found


def _too_deep() -> Refusal:
    return Refusal(422, "too_deep", f"the body is nested more than {DEEPEST} deep; write it flat")


def _no_number(name: str) -> None:
    raise Refusal(422, "no_json", f"{name} is no JSON; write a number, or null")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refusal(422, "no_json", "a name stands twice in one object of the body; write each once")
    return found


def _deep(value: Any) -> bool:
    """Level by level, so that no stack grows with it."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def sentence(errors: Sequence[Any], schema: type[BaseModel] | None = None) -> str:
    """The first complaint that goes deepest: of a text or a list of texts, it is about what came. The input itself is
    never repeated.
    """
    error = max(errors, key=lambda one: (len(one["loc"]), not one["type"].endswith("_type")))
    path = [str(part) for part in error["loc"] if _is_name(part)]
    where = ".".join(path)[:80] or "the body"
    match error["type"]:
        case "extra_forbidden":
            return f"{where}: no such setting; {nearest(where, schema.model_fields if schema else ())}"
        case "missing":
            return f"{where}: missing; write it"
        case "value_error":
            return f"{where}: {error['ctx']['error']}"
        case "string_pattern_mismatch":
            return f"{where}: positions are numbers of at most five digits; write one"
        case _:
            return f"{where}: {_wanted(error['msg'])}"


def _wanted(told: str) -> str:
    """In our words, and in those of JSON."""
    for theirs, ours in (("Input ", ""), ("should be", "must be"), ("should", "must"), ("None", "null"),
                         ("False", "false")):  # fmt: skip
        told = told.replace(theirs, ours)
    return told[:1].lower() + told[1:]


def _is_name(part: Any) -> bool:
    """pydantic names the branches of a choice as well: `list[constrained-str]`."""
    return isinstance(part, int) or (part.isidentifier() and part not in ("str", "int", "float", "bool"))
