"""Which rows a build can decode, derived from the declared payload types.

`Variants` pairs a pydantic type with a `Condition`: a small tree over JSON paths that every backend turns into one
SQL condition. A row that fails it was written by a build that knows more, and is left alone. A value that is absent
is no unknown variant: such a row is decodable, and its validation says what is wrong with it.
"""

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from edgeoutbox.errors import InvalidPayload, InvalidRequest, UnknownVariant
from edgeoutbox.keys import canonical_json, parse_json
from edgeoutbox.model import validation_message

Path: TypeAlias = tuple[str, ...]
Scalar: TypeAlias = str | int | bool

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part holds; with no part, always true."""

    parts: tuple["Condition", ...] = ()


@dataclass(frozen=True, slots=True)
class OneOf:
    """The value at the path is absent, null or one of these."""

    path: Path
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Each:
    """Every element of the list at the path fulfils the part, whose paths start at the element."""

    path: Path
    part: "Condition"


@dataclass(frozen=True, slots=True)
class Switch:
    """The tag at the path is absent or selects a case that holds; paths of the cases start at the same root."""

    path: Path
    cases: tuple[tuple[Scalar, "Condition"], ...]


@dataclass(frozen=True, slots=True)
class KeySuffix:
    """The last segment of the idempotency key, after the last colon, is one of these."""

    values: tuple[str, ...]


Condition: TypeAlias = AllOf | OneOf | Each | Switch | KeySuffix

ALWAYS = AllOf()


@dataclass(frozen=True, slots=True)
class Variants(Generic[P]):
    """A payload type and the condition that its rows fulfil. Made by `one`, `tagged` or `key_suffix`."""

    condition: Condition
    adapter: TypeAdapter[P] = field(repr=False)
    open_ended: bool = False
    """Whether a model takes fields that it does not declare; then enqueue does not refuse them."""

    def validate(self, payload: Any) -> P:
        """Read a payload at enqueue: unknown fields are refused. Raises `InvalidPayload`."""
        try:
            return self.adapter.validate_python(payload, extra=None if self.open_ended else "forbid")
        except ValidationError as error:
            msg = f"payload: {validation_message(error)}"
            raise InvalidPayload(msg) from None

    def require_key(self, idempotency_key: str) -> None:
        """Refuse, at enqueue, a key whose last segment selects no variant. Raises `InvalidRequest`."""
        for part in self.condition.parts if isinstance(self.condition, AllOf) else (self.condition,):
            if isinstance(part, KeySuffix) and not holds(part, None, idempotency_key):
                raise InvalidRequest(f"idempotency_key: its last segment must be one of {', '.join(part.values)}")

    def require_decodable(self, payload: Any, idempotency_key: str) -> None:
        """Refuse, at enqueue, a payload that this build would not claim. Raises `InvalidPayload`.

        pydantic reads "1" as the number 1, and the database does not.
        """
        if not holds(self.condition, payload, idempotency_key):
            raise InvalidPayload("payload: an enum or literal value is not of the JSON type that its field declares")

    def dump(self, payload: P) -> Any:
        """The payload as JSON values, to be stored."""
        return self.adapter.dump_python(payload, mode="json", by_alias=True)

    def decode(self, text: str, idempotency_key: str) -> P:
        """Read a stored payload: unknown fields are ignored. Raises `UnknownVariant` or `InvalidPayload`."""
        try:
            payload = parse_json(text)
        except InvalidRequest as error:
            raise InvalidPayload(str(error)) from None
        try:
            if "\\u" in text:  # an escape can hide a NUL or a lone surrogate, which have no canonical form
                canonical_json(payload)
        except InvalidRequest:
            raise InvalidPayload("payload: holds a character that cannot be stored faithfully") from None
        if not holds(self.condition, payload, idempotency_key):
            msg = "the payload's variant is not known to this build"
            raise UnknownVariant(msg)
        try:
            return self.adapter.validate_python(payload, extra=None if self.open_ended else "ignore")
        except ValidationError as error:
            raise InvalidPayload(f"payload: {self._codes(error)}") from None

    def _codes(self, error: ValidationError) -> str:
        """Declared fields and rules in fixed words; what is logged holds no key of a mapping and no message."""
        declared = _declared(self.adapter)
        found = []
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            steps = [str(step) for step in item["loc"] if isinstance(step, int) or step in declared]
            found.append(f"{'.'.join(steps) or 'a value'}: {_WORDS.get(item['type'], item['type'])}")
        return "; ".join(found)


_WORDS: Mapping[str, str] = {
    "missing": "is required",
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "string_pattern_mismatch": "is not written in the form that this field has",
    "string_too_short": "is too short",
    "string_too_long": "is too long",
    "too_short": "has too few items",
    "too_long": "has too many items",
    "literal_error": "is none of the values that this field takes",
    "enum": "is none of the values that this field takes",
    "union_tag_not_found": "has no tag that says which variant it is",
    "value_error": "breaks a rule of this field",
}
"""By pydantic's code, what may be logged of a rule that a stored payload broke."""

M = TypeVar("M", bound=BaseModel)


def _declared(adapter: TypeAdapter[Any]) -> set[str]:
    """The names of every field that a type declares, at any depth."""
    found: set[str] = set()

    def walk(schema: Any) -> None:
        if isinstance(schema, dict):
            found.update(schema.get("properties", ()))
            schema = list(schema.values())
        if isinstance(schema, list):
            for item in schema:
                walk(item)

    try:
        walk(adapter.json_schema())
    except PydanticUserError:
        return set()  # a type that has no JSON schema: its fields go unnamed
    return found


def one(model: type[M]) -> Variants[M]:
    """The payload names no variant; its enum and literal fields are still checked."""
    return Variants(_of_model(model, (), ()), TypeAdapter(model), model.model_config.get("extra") == "allow")


def tagged(union: Any, tag: str = "notice") -> Variants[Any]:
    """A discriminated union: the string property `tag` of the payload selects the model.

    Accepts a union of models, an `Annotated` one with `Field(discriminator=...)`, or a single model.
    """
    inner = union
    if get_origin(union) is Annotated:
        inner, *marks = get_args(union)
        tag = next(
            (m.discriminator for m in marks if isinstance(m, FieldInfo) and isinstance(m.discriminator, str)), tag
        )
    models = get_args(inner) if get_origin(inner) in {Union, types.UnionType} else (inner,)
    condition = _of_tagged(models, tag, (), ())
    typed: Any = Annotated[inner, Field(discriminator=tag)] if len(models) > 1 else inner
    return Variants(condition, TypeAdapter(typed))


def key_suffix(*values: str, payload: Any = dict[str, Any]) -> Variants[Any]:
    """The last segment of the idempotency key selects the variant, such as `feedback:7:send`."""
    if not values or any(not value or ":" in value for value in values):
        msg = "key_suffix: give one or more names without ':'"
        raise TypeError(msg)
    return Variants(AllOf((KeySuffix(values), _of_type(payload, (), (), "payload"))), TypeAdapter(payload))


def holds(condition: Condition, payload: Any, idempotency_key: str) -> bool:
    """Whether a row fulfils the condition; agrees with the SQL that the backends derive from it."""
    match condition:
        case AllOf(parts):
            return not parts or all(holds(part, payload, idempotency_key) for part in parts)
        case OneOf(path, values):
            value = _at(payload, path)
            return value is None or any(_same(value, allowed) for allowed in values)
        case Each(path, part):
            items = _at(payload, path)
            return not isinstance(items, list) or all(holds(part, item, idempotency_key) for item in items)
        case Switch(path, cases):
            value = _at(payload, path)
            return value is None or any(
                _same(value, tag) and holds(part, payload, idempotency_key) for tag, part in cases
            )
        case KeySuffix(values):
            return idempotency_key.rpartition(":")[2] in values


def selects(condition: Condition, text: str, idempotency_key: str) -> bool:
    """Whether a stored row fulfils the condition; one whose payload is unreadable is no unknown variant."""
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        return True
    return holds(condition, payload, idempotency_key)


def _same(value: Any, allowed: Scalar) -> bool:
    return type(value) is type(allowed) and bool(value == allowed)


def _at(value: Any, path: Path) -> Any:
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def _of_model(model: type[BaseModel], path: Path, outer: tuple[type, ...]) -> Condition:
    if model in outer:
        msg = f"{model.__name__}: a type that contains itself cannot become one SQL condition"
        raise TypeError(msg)
    parts = []
    for name, info in model.model_fields.items():
        where = f"{model.__name__}.{name}"
        part = _of_type(
            info.annotation, (*path, name), (*outer, model), where, tuple(info.metadata), info.discriminator
        )
        if part == ALWAYS:
            continue
        alias = info.validation_alias or info.alias or name
        if not isinstance(alias, str):
            msg = f"{where}: a field with several aliases cannot become one SQL condition"
            raise TypeError(msg)
        if json.dumps(alias, ensure_ascii=False) != f'"{alias}"':
            msg = f"{where}: an alias with quotes or backslashes cannot become one SQL condition"
            raise TypeError(msg)
        if alias != name:
            part = _of_type(info.annotation, (*path, alias), (*outer, model), where, (), info.discriminator)
        parts.append(part)
    return _all(parts)


def _of_type(  # noqa: PLR0911 - one return for each shape of type
    annotation: Any, path: Path, outer: tuple[type, ...], where: str, metadata: tuple[Any, ...] = (), tag: Any = None
) -> Condition:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _of_type(args[0], path, outer, where, args[1:], tag)
    tag = tag or next((mark.discriminator for mark in metadata if isinstance(mark, FieldInfo)), None)
    if origin is Literal:
        return _one_of(args, path, where)
    if origin in {Union, types.UnionType}:
        return _of_union([arg for arg in args if arg is not type(None)], path, outer, where, tag)
    if origin in {list, tuple, set, frozenset} or (isinstance(origin, type) and issubclass(origin, Sequence)):
        items = {_of_type(arg, (), outer, where) for arg in args if arg is not Ellipsis}
        return _each(items, path, where)
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if any(_of_type(arg, (), outer, where) != ALWAYS for arg in args):
            msg = f"{where}: a mapping of variants cannot become one SQL condition; use a list of models"
            raise TypeError(msg)
        return ALWAYS
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of(tuple(member.value for member in annotation), path, where)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _of_model(annotation, path, outer)
    if isinstance(annotation, TypeVar) or hasattr(annotation, "__required_keys__") or is_dataclass(annotation):
        msg = f"{where}: {annotation!r} cannot become one SQL condition; use a pydantic model"
        raise TypeError(msg)
    return ALWAYS


def _of_union(args: list[Any], path: Path, outer: tuple[type, ...], where: str, tag: Any) -> Condition:
    if len(args) == 1:
        return _of_type(args[0], path, outer, where)
    if isinstance(tag, str):
        return _of_tagged(tuple(args), tag, path, outer)
    parts = [_of_type(arg, path, outer, where) for arg in args]
    if all(isinstance(part, OneOf) for part in parts):
        return OneOf(path, tuple(value for part in parts if isinstance(part, OneOf) for value in part.values))
    if any(part != ALWAYS for part in parts) or any(_is_model(arg) for arg in args):
        msg = f"{where}: a union of models needs Field(discriminator=...) to become one SQL condition"
        raise TypeError(msg)
    return ALWAYS


def _of_tagged(models: tuple[Any, ...], tag: str, path: Path, outer: tuple[type, ...]) -> Condition:
    cases: list[tuple[Scalar, Condition]] = []
    for model in models:
        if not _is_model(model) or tag not in model.model_fields:
            msg = f"tagged: {model!r} is not a model with a field {tag!r}"
            raise TypeError(msg)
        info = model.model_fields[tag]
        if get_origin(info.annotation) is not Literal:
            msg = f"tagged: {model.__name__}.{tag} must be a Literal"
            raise TypeError(msg)
        cases.extend((value, _of_model(model, path, outer)) for value in get_args(info.annotation))
    alias = models[0].model_fields[tag].alias or tag
    return Switch((*path, alias), tuple(cases))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _one_of(values: tuple[Any, ...], path: Path, where: str) -> Condition:
    allowed = tuple(value for value in values if value is not None)
    if any(not isinstance(value, str | int) for value in allowed):
        msg = f"{where}: only strings, integers and booleans can become one SQL condition"
        raise TypeError(msg)
    return OneOf(path, tuple(value.value if isinstance(value, Enum) else value for value in allowed))


def _each(items: set[Condition], path: Path, where: str) -> Condition:
    items.discard(ALWAYS)
    if len(items) > 1:
        msg = f"{where}: a tuple of different variants cannot become one SQL condition"
        raise TypeError(msg)
    return Each(path, items.pop()) if items else ALWAYS


def _all(parts: list[Condition]) -> Condition:
    match parts:
        case []:
            return ALWAYS
        case [part]:
            return part
        case _:
            return AllOf(tuple(parts))
