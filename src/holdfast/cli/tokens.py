"""JWTs for `holdfast serve` and `holdfast doctor`: from the settings to what checks them. Their library is optional."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.cli.doctor_finding import Finding
from holdfast.config import Config, ConfigError
from holdfast.server.http.identity import Identities
from holdfast.server.http.keys import KeyRing
from holdfast.store.clock import Clock, SystemClock

if TYPE_CHECKING:
    from holdfast.server.http.key_set import KeySet


def check_tokens(config: Config) -> None:
    """Raise `ConfigError` if JWTs are to be accepted and can't be: nothing has started yet."""
    if config.jwt_jwks is None:
        return
    if config.auth != "keys":
        raise ConfigError("HOLDFAST_JWT_JWKS", "is set, but --auth is none", allowed="with --auth keys, or not set")
    _key_set_module()


@asynccontextmanager
async def keys_and_tokens(config: Config, keys: KeyRing, clock: Clock) -> AsyncIterator[Identities]:
    """What identifies callers by API keys and by JWTs. The key set is kept up to date inside the context."""
    from holdfast.server.http.tokens import KeysAndTokens, TokenRules, Tokens  # deferred: an optional package

    assert config.jwt_issuer is not None, "the configuration requires it with a key set"
    rules = TokenRules(
        issuer=config.jwt_issuer,
        audience=config.jwt_audience,
        algorithms=config.jwt_algorithms,
        owner_claim=config.jwt_owner_claim,
        shares_owners=config.jwt_owners == "shared",
        role_claim=config.jwt_role_claim,
        admin_roles=config.jwt_admin_roles,
        user_roles=config.jwt_user_roles,
        leeway_seconds=config.jwt_leeway_seconds,
    )
    async with _key_set(config, clock) as key_set:
        yield KeysAndTokens(keys, Tokens(rules, key_set, clock))


async def examine_tokens(config: Config) -> Finding:
    """Whether the key set can be had and has a usable key."""
    name = "Tokens"
    if config.jwt_jwks is None:
        return Finding(name=name, ok=True, found="no JWTs (HOLDFAST_JWT_JWKS is not set)")
    try:
        check_tokens(config)
        keys = await _key_set(config, SystemClock()).fetch()
    except _key_set_module().BadKeySet as error:
        advice = "Check HOLDFAST_JWT_JWKS, and that this machine can reach it."
        source = config.jwt_jwks.partition("?")[0]  # The rest may hold a key.
        return Finding(name=name, ok=False, found=f"the key set of {source}: {error}", advice=advice)
    count = len({key.thumbprint for key in keys})
    algorithms = ", ".join(sorted({key.algorithm for key in keys})) or "none"
    return Finding(
        name=name,
        ok=count > 0,
        found=f"{count} usable key{'' if count == 1 else 's'} of {config.jwt_issuer} (algorithms: {algorithms})",
        advice="Check HOLDFAST_JWT_ALGORITHMS, and that the set has keys for signatures.",
    )


def _key_set(config: Config, clock: Clock) -> "KeySet":
    assert config.jwt_jwks is not None
    module = _key_set_module()
    key_set: KeySet = module.KeySet(module.fetch_from(config.jwt_jwks), clock, config.jwt_algorithms)
    return key_set


def _key_set_module() -> ModuleType:
    try:
        from holdfast.server.http import key_set  # deferred: an optional package
    except ImportError:
        raise ConfigError(
            "HOLDFAST_JWT_JWKS",
            "is set, but the package `pyjwt` is not installed",
            allowed="with it (pip install 'holdfast[jwt]'), or not set",
        ) from None
    return key_set
