"""The settings of a cluster: valid values, and that a password in them is never shown."""

import pytest

from holdfast.cli.settings import warn_without_redis
from holdfast.config import ConfigError, load

HOME = {"HOME": "/home/somebody"}


@pytest.mark.parametrize(
    "url",
    [
        "redis://cache",
        "redis://cache:6380/3",
        "redis://user:hush@[::1]:6379",
        "rediss://:hush%40hush@cache?ssl_ca_certs=/etc/ca.pem",
        "unix:///run/redis.sock?db=1",
    ],
)
def test_redis_url_is_accepted_and_never_shown(url: str) -> None:
    config = load({}, HOME | {"HOLDFAST_REDIS": f" {url} "})
    assert config.redis is not None
    assert config.redis.reveal() == url
    assert "cache" not in repr(config.redis)
    assert "hush" not in repr(config)


@pytest.mark.parametrize(
    "url",
    [
        "cache:6379",
        "http://:hush@cache",
        "redis://",
        "redis://:hush@",
        "redis://cache:port",
        "redis://:hu#sh@cache",
        "unix://",
        "redis://a b",
    ],
)
def test_invalid_redis_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        load({"redis": url}, HOME)
    assert error.value.setting == "--redis"
    assert "hush" not in str(error.value)
    assert "rediss://" in str(error.value)


def test_concurrency_and_drain_time_are_options() -> None:
    config = load({"max_sessions_per_process": "7", "drain_seconds": "0"}, HOME)
    assert (config.max_sessions_per_process, config.drain_seconds) == (7, 0.0)
    with pytest.raises(ConfigError, match="--concurrency is '0'"):
        load({"max_sessions_per_process": "0"}, HOME)
    with pytest.raises(ConfigError, match="--drain-seconds is 'soon'"):
        load({"drain_seconds": "soon"}, HOME)


def test_missing_redis_is_warned_of_only_for_a_shared_database(capsys: pytest.CaptureFixture[str]) -> None:
    warn_without_redis(load({}, HOME))
    warn_without_redis(load({"database": "postgresql://me:hush@there/x", "redis": "redis://there"}, HOME))
    assert capsys.readouterr().err == ""
    warn_without_redis(load({"database": "postgresql://me:hush@there/x"}, HOME))
    told = capsys.readouterr().err
    assert told.startswith("holdfast: There is no Redis (HOLDFAST_REDIS)")
    assert "hush" not in told
