"""The settings of a cluster: what they may be, and that a password among them is never shown."""

import pytest

from holdfast.cli.opening import warn_without_redis
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
def test_redis_is_named_by_a_url_that_nothing_shows(url: str) -> None:
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
def test_what_is_no_url_of_a_redis_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        load({"redis": url}, HOME)
    assert error.value.setting == "--redis"
    assert "hush" not in str(error.value)
    assert "rediss://" in str(error.value)


def test_hands_are_counted_and_drained_by_options() -> None:
    config = load({"max_sessions_per_process": "7", "drain_seconds": "0"}, HOME)
    assert (config.max_sessions_per_process, config.drain_seconds) == (7, 0.0)
    with pytest.raises(ConfigError, match="--concurrency is '0'"):
        load({"max_sessions_per_process": "0"}, HOME)
    with pytest.raises(ConfigError, match="--drain-seconds is 'soon'"):
        load({"drain_seconds": "soon"}, HOME)


def test_only_a_database_that_machines_share_wants_redis(capsys: pytest.CaptureFixture[str]) -> None:
    warn_without_redis(load({}, HOME))
    warn_without_redis(load({"database": "postgresql://me:hush@there/x", "redis": "redis://there"}, HOME))
    assert capsys.readouterr().err == ""
    warn_without_redis(load({"database": "postgresql://me:hush@there/x"}, HOME))
    told = capsys.readouterr().err
    assert told.startswith("holdfast: There is no Redis (HOLDFAST_REDIS)")
    assert "hush" not in told
