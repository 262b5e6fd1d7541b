"""Addresses: what is accepted as one, and how it is written in an envelope and in a header."""

import re
from dataclasses import dataclass

_NAMED = re.compile(r"(?P<name>[^<>]*?)\s*<(?P<address>[^<>]*)>")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u0080-\U0010ffff-]+"
_LOCAL = re.compile(rf"{_ATEXT}(?:\.{_ATEXT})*")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_SPECIALS = frozenset('",;:@<>()[]\\')
# Python's codec follows the older IDNA, which turns each of these into something that is another domain today.
_DEVIATIONS = frozenset("\u00df\u03c2\u200c\u200d")
_LONGEST_LOCAL = 64
_LONGEST = 254


@dataclass(frozen=True, slots=True)
class Address:
    """One mailbox: a display name, perhaps empty, and an address whose domain is ASCII (`xn--` where need be)."""

    name: str
    local: str
    domain: str

    @property
    def spec(self) -> str:
        """`local@domain`, as it stands in the envelope."""
        return f"{self.local}@{self.domain}"

    @property
    def needs_smtputf8(self) -> bool:
        """Whether the local part has characters that only an SMTPUTF8 relay takes (RFC 6531)."""
        return not self.local.isascii()

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `local@domain` or `Name <local@domain>`: exactly one address.

        Raises `ValueError` with the rule, never the value.
        """
        refuse_unprintable(text)
        named = _NAMED.fullmatch(text.strip())
        name, spec = (_display_name(named["name"]), named["address"]) if named else ("", text.strip())
        local, _, domain = spec.rpartition("@")
        if not _LOCAL.fullmatch(local) or "=?" in local:
            raise ValueError("must be one address, as local@domain or Name <local@domain>")
        if len(local.encode()) > _LONGEST_LOCAL:
            raise ValueError(f"the part before @ is longer than {_LONGEST_LOCAL} bytes")
        address = cls(name, local, _ascii_domain(domain))
        if len(address.spec.encode()) > _LONGEST:
            raise ValueError(f"is longer than {_LONGEST} bytes")
        return address


def refuse_unprintable(text: str) -> None:
    """Raise `ValueError` for control characters, line separators and lone surrogates: none belongs in a header."""
    for char in text:
        if ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F or char in "\u2028\u2029" or "\ud800" <= char <= "\udfff":  # noqa: PLR2004 - the C0 and C1 control characters
            raise ValueError("contains a control character")


def _display_name(text: str) -> str:
    if _QUOTED.fullmatch(text):
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if _SPECIALS.intersection(text):
        raise ValueError('a name with punctuation stands in quotes, as "Doe, Jane" <jane@example.com>')
    return text


def _ascii_domain(domain: str) -> str:
    if not domain.isascii():
        if _DEVIATIONS.intersection(domain):
            raise ValueError("the domain has a character that standards read differently; give its xn-- form")
        try:
            encoded = domain.encode("idna").decode("ascii")
            same = encoded.encode("ascii").decode("idna") == domain.lower()
        except UnicodeError:
            raise ValueError("the domain is not a valid international domain name") from None
        if not same:
            raise ValueError("the domain is not in its normal form; give its xn-- form")
        domain = encoded
    if not all(_LABEL.fullmatch(label) for label in domain.split(".")):
        raise ValueError("the domain is not a host name")
    return domain
