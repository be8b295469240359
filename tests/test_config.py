"""Settings: precedence, refused values with their messages, and keys that are never shown."""

import copy
import os
import pickle
import pwd
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from holdfast.app import turn_limits
from holdfast.config import RESERVED, SETTINGS, Config, ConfigError, Secret, Setting, load
from holdfast.events.ids import Owner
from holdfast.models.providers import PROVIDERS, KnownProvider
from holdfast.session.bounds import Bounds

HOME = {"HOME": "/home/ada"}
KEY = "sk-very-secret"
NUMBERS = [setting for setting in SETTINGS if setting.default.replace(".", "", 1).isdigit()]


def refusal(options: Mapping[str, object], environ: Mapping[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(options, HOME | dict(environ or {}))
    return caught.value


def value_of(config: Config, setting: Setting) -> object:
    return getattr(config.bounds if setting.is_bound else config, setting.name)


# Precedence


def test_nothing_needs_to_be_set() -> None:
    config = load({}, HOME)
    assert config.model == "demo"
    assert config.owner == "local"
    assert config.bounds == Bounds()
    assert config.warnings == ()


def test_a_variable_beats_the_default_and_an_option_beats_both() -> None:
    environ = HOME | {"HOLDFAST_MODEL": "from-variable"}
    assert load({}, environ).model == "from-variable"
    assert load({"model": "from-option"}, environ).model == "from-option"


def test_a_none_option_and_an_empty_variable_count_as_unset() -> None:
    assert load({"model": None}, HOME | {"HOLDFAST_MODEL": " "}).model == "demo"


def test_a_wrong_variable_is_ignored_when_an_option_overrides_it() -> None:
    assert load({"max_rounds": 3}, HOME | {"HOLDFAST_MAX_ROUNDS": "many"}).bounds.max_rounds == 3


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
def test_the_key_of_a_provider_chooses_its_model_where_none_is_chosen(provider: KnownProvider) -> None:
    environ = HOME | {provider.key_variable: KEY}
    config = load({}, environ)
    assert config.model == provider.default_model
    assert config.model_api_key is None
    assert config.keyed_model is not None
    assert f"{provider.key_variable} is set: the model is {provider.default_model}." in config.keyed_model.explain()
    assert KEY not in config.keyed_model.explain()
    for chosen in (load({"model": "demo"}, environ), load({}, environ | {"HOLDFAST_MODEL": "demo"})):
        assert (chosen.model, chosen.keyed_model) == ("demo", None)
    assert load({}, HOME | {provider.key_variable: " "}).model == "demo"


def test_with_several_keys_the_first_provider_is_taken_and_the_others_are_named() -> None:
    keys = {provider.key_variable: KEY for provider in PROVIDERS.values()}
    keyed = load({}, HOME | keys).keyed_model
    assert keyed is not None
    assert keyed.model == PROVIDERS["anthropic"].default_model
    assert "OPENAI_API_KEY and OPENROUTER_API_KEY could choose others" in keyed.explain()
    assert "--model or HOLDFAST_MODEL" in keyed.explain()


@pytest.mark.parametrize("name", ["HOLDFAST_MODEL_API_KEY", "HOLDFAST_MODEL_BASE_URL"])
def test_a_key_or_an_address_without_a_model_keeps_other_keys_from_choosing_one(name: str) -> None:
    """They are for a model that is not named yet, and no other provider may be sent them."""
    config = load({}, HOME | {"ANTHROPIC_API_KEY": "other", name: "https://llm.example.org/v1"})
    assert (config.model, config.keyed_model) == ("demo", None)


def test_a_key_for_a_server_in_place_of_openai_chooses_no_model() -> None:
    environ = HOME | {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://llm.example.org/v1"}
    assert load({}, environ).model == "demo"
    assert (
        load({}, environ | {"OPENAI_BASE_URL": "https://api.openai.com/v1"}).model == PROVIDERS["openai"].default_model
    )
    assert load({}, environ | {"OPENROUTER_API_KEY": KEY}).model == PROVIDERS["openrouter"].default_model
    gateway = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "https://gateway.example.org"}
    assert load({}, HOME | gateway).model == PROVIDERS["anthropic"].default_model


def test_a_protocol_is_for_the_provider_that_the_environment_names() -> None:
    environ = HOME | {"HOLDFAST_MODEL": "openai/gpt", "HOLDFAST_MODEL_WIRE": "messages"}
    assert load({}, environ).model_wire == "messages"
    assert load({"model": "openrouter/x"}, environ).model_wire == "auto"
    error = refusal({}, {"HOLDFAST_MODEL_WIRE": "soap"})
    assert str(error).endswith("Allowed: auto or chat or responses or messages.")


# The fall-back


def test_the_fallback_is_another_model() -> None:
    assert load({"model": "openai/a"}, HOME | {"HOLDFAST_MODEL_FALLBACK": "openai/b"}).model_fallback == "openai/b"
    assert load({}, HOME).model_fallback is None
    same = refusal({"model": "openai/a"}, {"HOLDFAST_MODEL_FALLBACK": "openai/a"})
    assert str(same) == "model_fallback is openai/a, the model itself. Allowed: another model, or not set."
    nameless = refusal({}, {"HOLDFAST_MODEL_FALLBACK": "openai"})
    assert "which is no model's name" in str(nameless)


# The file of facts about models


def stated_in(folder: Path, text: str, name: str = "models.toml") -> dict[str, str]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return {"HOLDFAST_MODELS": str(path)}


def test_facts_about_models_are_read_with_the_settings(tmp_path: Path) -> None:
    (facts,) = load({}, HOME | stated_in(tmp_path, '["openai/x"]\nwindow = 65536\n')).models
    assert (facts.model, facts.window) == ("openai/x", 65_536)
    assert load({}, HOME).models == ()


def test_a_wrong_fact_is_refused_with_its_file_its_model_and_its_key(tmp_path: Path) -> None:
    error = refusal({}, stated_in(tmp_path, '["openai/x"]\nwindow = 0\n'))
    assert str(error) == (
        f"HOLDFAST_MODELS is {tmp_path}/models.toml, where window of the model openai/x is 0. "
        f"Allowed: a whole number of tokens, 1 to 1000000000."
    )


def test_a_key_and_a_url_in_the_environment_are_for_the_provider_that_it_names() -> None:
    environ = {
        "HOLDFAST_MODEL": "openai/gpt",
        "HOLDFAST_MODEL_API_KEY": KEY,
        "HOLDFAST_MODEL_BASE_URL": "http://llm.local/v1",
    }
    other = load({"model": "openrouter/x"}, environ)
    assert (other.model_api_key, other.model_base_url) == (None, None)
    given = load({"model": "openrouter/x", "model_base_url": "http://other.local/v1"}, environ)
    assert (given.model_api_key, given.model_base_url) == (None, "http://other.local/v1")
    for model, variable in (("openai/x", "openai/gpt"), ("openai/x", "demo"), ("openrouter/x", "")):
        same = load({"model": model}, {**environ, "HOLDFAST_MODEL": variable})
        assert (same.model_api_key, same.model_base_url) == (Secret(KEY), "http://llm.local/v1")


def test_every_field_is_a_setting_and_every_setting_has_a_meaning() -> None:
    fields = {field.name for struct in (Config, Bounds) for field in msgspec.structs.fields(struct)}
    assert {setting.name for setting in SETTINGS} == fields - {"bounds", "warnings", "database_url", "keyed_model"}
    assert all(setting.meaning for setting in SETTINGS)


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_every_number_can_be_set_by_its_variable(setting: Setting) -> None:
    # A value near the default: some numbers must fit to each other.
    number = float(setting.default) + 1
    config = load({}, HOME | {setting.env: f"{number:g}" if number < 1e5 else str(int(number))})
    assert value_of(config, setting) == number


def test_the_defaults_on_the_page_are_the_defaults_in_force() -> None:
    config = load({}, HOME)
    assert {setting.name: float(setting.default) for setting in NUMBERS} == {
        setting.name: value_of(config, setting) for setting in NUMBERS
    }


# Paths


def test_the_data_directory_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert load({}, HOME).data_dir == Path("/home/ada/.local/share/holdfast")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert load({}, HOME).data_dir == Path("/home/ada/Library/Application Support/holdfast")
    assert load({}, HOME | {"XDG_DATA_HOME": "/data"}).data_dir == Path("/data/holdfast")


def test_a_relative_xdg_data_home_is_ignored_as_its_specification_says() -> None:
    assert load({}, HOME | {"XDG_DATA_HOME": "data"}).data_dir == load({}, HOME).data_dir


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_a_usable_home_variable_the_user_database_gives_the_home(environ: dict[str, str]) -> None:
    assert load({}, environ).data_dir.is_relative_to(pwd.getpwuid(os.getuid()).pw_dir)


def test_the_error_for_a_user_without_a_home_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ConfigError, match="HOLDFAST_DATA_DIR"):
        load({}, {})
    assert load({"data_dir": "/data"}, {}).data_dir == Path("/data")


def test_the_database_is_in_the_data_directory() -> None:
    config = load({"data_dir": Path("/data")}, HOME)
    assert config.database == "sqlite:////data/holdfast.db"
    assert config.database_path == Path("/data/holdfast.db")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////srv/there.db", Path("/srv/there.db")),
        ("sqlite:///here.db", Path.cwd() / "here.db"),
        ("sqlite:///./sub/../here.db", Path.cwd() / "here.db"),
        ("sqlite:///~/mine.db", Path("/home/ada/mine.db")),
        ("sqlite:////srv/a name?#%20.db", Path("/srv/a name?#%20.db")),
    ],
)
def test_a_database_url_names_a_file(url: str, path: Path) -> None:
    config = load({"database": url}, HOME)
    assert config.database_path == path
    assert load({"database": config.database}, HOME).database == config.database


def test_a_tilde_in_the_data_directory_is_the_home() -> None:
    assert load({}, HOME | {"HOLDFAST_DATA_DIR": "~/hold"}).data_dir == Path("/home/ada/hold")


# Refused values


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///dir/", "here.db", "mysql://h/d", "sqlite:///a\0b", 7],
)
def test_a_database_url_without_a_file_is_refused(url: object) -> None:
    error = refusal({"database": url})
    assert error.setting == "--database"
    assert "sqlite:///relative.db, sqlite:////absolute.db or postgresql://" in str(error)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://ada:{KEY}@db.example:5433/x?sslmode=require", "postgresql://ada@db.example:5433/x"),
        (f"postgres://ada:{KEY}@db/x", "postgresql://ada@db/x"),
        (f"postgresql://one:1,two:2/x?user=ada&password={KEY}", "postgresql://one:1,two:2/x"),
        (f"postgresql://ada:{KEY}@/x?host=/run/postgresql", "postgresql://ada@%2Frun%2Fpostgresql/x"),
        (f"postgresql://ada:{KEY}@[::1]:5432/x", "postgresql://ada@[::1]:5432/x"),
    ],
)
def test_the_password_of_a_database_is_shown_nowhere(url: str, shown: str) -> None:
    config = load({}, {**HOME, "HOLDFAST_DATABASE": url, "HOLDFAST_DATABASE_DIRECT": url})
    assert config.is_postgres
    assert (config.database, config.database_shown) == (shown, shown)
    assert config.database_url is not None
    assert config.database_url.reveal() == url
    assert KEY not in repr(config)
    assert not load({}, HOME).is_postgres


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{KEY}@/x",
        f"postgresql://ada:{KEY}@db",
        f"postgresql://ada:{KEY}@db/",
        f"postgresql://ada:{KEY}@db:0/x",
        f"postgresql://ada:{KEY}@db:port/x",
        f"postgresql://ada:{KEY} @db/x",
        f"postgresql://ada:{KEY}#@db/x",
        f"postgresql://ada:{KEY}/@db:1/x",
        f"postgresql:ada:{KEY}@db/x",
        f"pg//ada:{KEY}@db/x",
    ],
)
def test_a_wrong_url_of_postgresql_is_refused_and_not_repeated(url: str) -> None:
    error = refusal({}, {"HOLDFAST_DATABASE": url})
    assert error.setting == "HOLDFAST_DATABASE"
    assert KEY not in str(error)


def test_a_direct_database_url_is_for_postgresql_only() -> None:
    assert refusal({"database_direct": "postgresql://db/x"}).setting == "database_direct"


@pytest.mark.parametrize(
    "value", ["many", "1.5", "0", "-1", str(10**12 + 1), "9" * 5000, "nan", 1.0, True, [], 10**400]
)
def test_a_bound_must_be_a_whole_number_in_range(value: object) -> None:
    assert "a whole number, 1 to 1000000000000" in str(refusal({"max_rounds": value}))


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", "1e400", True, 10**400])
def test_seconds_must_be_a_number_in_range(value: object) -> None:
    assert "a number of seconds, more than 0 to 1000000000000" in str(refusal({"tool_timeout_seconds": value}))


def test_an_error_names_the_variable_the_problem_and_what_is_allowed() -> None:
    error = refusal({}, {"HOLDFAST_MAX_ROUNDS": "many"})
    assert error.code == "config_invalid"
    allowed = "Allowed: a whole number, 1 to 1000000000000."
    assert str(error) == f"HOLDFAST_MAX_ROUNDS is 'many', not a whole number. {allowed}"


def test_a_linger_of_zero_is_allowed() -> None:
    assert load({"linger_seconds": 0}, HOME).bounds.linger_seconds == 0


def test_a_lease_that_could_not_be_renewed_in_time_is_refused() -> None:
    error = refusal({"renew_every_seconds": 12})
    assert error.setting == "renew_every_seconds"
    assert "lease_ttl_seconds - lease_margin_seconds, which is 12" in str(error)


def test_a_longest_backoff_below_the_first_is_refused() -> None:
    assert refusal({"backoff_seconds": 31}).setting == "max_backoff_seconds"


def test_no_more_turns_run_than_may_be_in_flight() -> None:
    error = refusal({"max_running_turns_per_owner": 16})
    assert error.setting == "max_turns_in_flight_per_owner"
    assert "16" in error.allowed
    assert load({"max_running_turns_per_owner": 16, "max_turns_in_flight_per_owner": 0}, HOME).auth == "none"


def test_only_the_local_owner_of_a_process_without_keys_has_no_turn_limits() -> None:
    alone, served = turn_limits(load({"owner": "ada"}, HOME)), turn_limits(load({"owner": "ada", "auth": "keys"}, HOME))
    assert (alone.running_of(Owner("ada")), alone.in_flight_of(Owner("ada"))) == (None, None)
    assert (alone.running_of(Owner("bob")), alone.in_flight_of(Owner("bob"))) == (5, 15)
    assert (served.running_of(Owner("ada")), served.in_flight_of(Owner("ada"))) == (5, 15)
    assert turn_limits(load({"max_running_turns_per_owner": 0}, HOME)).running is None


@pytest.mark.parametrize("owner", ["  ", "a" * 65, "a\nb", 7])
def test_an_owner_is_a_short_line_of_text(owner: object) -> None:
    assert refusal({"owner": owner}).setting == "owner"


def test_host_port_and_authentication_of_a_server_are_settings() -> None:
    config = load({"port": "0"}, HOME | {"HOLDFAST_HOST": "::1", "HOLDFAST_PORT": "99", "HOLDFAST_AUTH": "keys"})
    assert (config.host, config.port, config.auth) == ("::1", 0, "keys")
    for port in ("-1", "65536", "x", True):
        assert refusal({"port": port}).setting == "--port"
    assert refusal({"auth": "jwt"}).allowed == "none or keys"


def test_lists_are_separated_by_commas() -> None:
    environ = HOME | {
        "HOLDFAST_USER_DIRECTORIES": "~/a, /b/{owner}, shared:~/c",
        "HOLDFAST_ALLOWED_ORIGINS": "https://a.example,http://b:1",
    }
    config = load({}, environ)
    assert config.user_directories == ("/home/ada/a", "/b/{owner}", "shared:/home/ada/c")
    for folders in ("/a/{owner}/{owner}", "shared:/a/{owner}"):
        assert refusal({}, {"HOLDFAST_USER_DIRECTORIES": folders}).setting == "HOLDFAST_USER_DIRECTORIES"
    assert config.allowed_origins == ("https://a.example", "http://b:1")
    for origin in ("a.example", "https://a.example/", "https://", "*", "null", "HTTPS://a.example"):
        assert refusal({}, {"HOLDFAST_ALLOWED_ORIGINS": origin}).setting == "HOLDFAST_ALLOWED_ORIGINS"


def test_sandbox_settings_are_read_and_unknown_values_refused() -> None:
    assert (load({}, HOME).sandbox, load({}, HOME).sandbox_network) == ("none", "on")
    environ = HOME | {"HOLDFAST_SANDBOX": "bubblewrap", "HOLDFAST_SANDBOX_NETWORK": "off"}
    assert (load({}, environ).sandbox, load({}, environ).sandbox_network) == ("bubblewrap", "off")
    assert load({"sandbox": "none"}, environ).sandbox == "none"
    assert str(refusal({"sandbox": "docker"})).endswith("Allowed: none or bubblewrap.")
    assert str(refusal({}, {"HOLDFAST_SANDBOX_NETWORK": "yes"})).startswith("HOLDFAST_SANDBOX_NETWORK is 'yes', ")
    assert refusal({"sandbox": True}).allowed == "none or bubblewrap"


@pytest.mark.parametrize("url", ["api.example", "ftp://a", "https://", "https://a:x", "https://[", "http://a b", 7])
def test_a_base_url_must_be_a_web_address(url: object) -> None:
    assert refusal({"model_base_url": url}).setting == "--model-base-url"


@pytest.mark.parametrize("url", [f"https://ada:{KEY}@api.example", f"https://api.example/?key={KEY}"])
def test_a_base_url_that_holds_a_key_is_refused_and_not_repeated(url: str) -> None:
    assert KEY not in str(refusal({"model_base_url": url}))


def test_a_base_url_has_no_closing_slash() -> None:
    assert load({"model_base_url": "http://127.0.0.1:8080/v1/"}, HOME).model_base_url == "http://127.0.0.1:8080/v1"


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    assert refusal({"max_round": 3}).allowed == "max_rounds"


def test_an_unknown_variable_is_a_warning_with_the_nearest_name() -> None:
    config = load({}, HOME | {"HOLDFAST_MAX_ROUND": KEY, "HOLDFAST_XYZ": KEY})
    assert config.warnings == (
        "HOLDFAST_MAX_ROUND is set, but there is no such setting. Did you mean HOLDFAST_MAX_ROUNDS?",
        "HOLDFAST_XYZ is set, but there is no such setting.",
    )


def test_variables_of_servers_and_clusters_are_tolerated_silently() -> None:
    assert load({}, HOME | dict.fromkeys(RESERVED, "x")).warnings == ()


# Secrets


def test_a_key_is_not_shown_by_the_configuration_that_holds_it() -> None:
    config = load({}, HOME | {"HOLDFAST_MODEL_API_KEY": f" {KEY}\n"})
    assert config.model_api_key == Secret(KEY)
    assert config.model_api_key.reveal() == KEY
    assert KEY not in f"{config!r} {config} {config.model_api_key} {config.model_api_key!r}"


@pytest.mark.parametrize("key", [f"{KEY} two", f"{KEY}\u00e9", f"{KEY}\nHeader: x"])
def test_a_key_that_can_not_be_sent_is_refused_and_not_repeated(key: str) -> None:
    assert KEY not in str(refusal({}, {"HOLDFAST_MODEL_API_KEY": key}))


def test_a_key_to_seal_with_is_long_enough_and_not_shown() -> None:
    config = load({}, HOME | {"HOLDFAST_SECRET_KEY": "0123456789abcdef"})
    assert config.secret_key == Secret("0123456789abcdef")
    assert "0123456789abcdef" not in repr(config)
    error = refusal({}, {"HOLDFAST_SECRET_KEY": "0123456789abcde"})
    assert error.setting == "HOLDFAST_SECRET_KEY"
    assert "16 or more" in str(error)
    assert "0123456789abcde" not in str(error)


@pytest.mark.parametrize("name", ["HOLDFAST_BILLING_SECRET", "HOLDFAST_CREDIT_SECRET"])
def test_a_secret_of_webhooks_is_long_enough_and_well_formed(name: str) -> None:
    more = {"HOLDFAST_CREDIT_URL": "https://billing.example/credit"} if name == "HOLDFAST_CREDIT_SECRET" else {}
    for good in ("0123456789abcdef", "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="):
        assert load({}, HOME | more | {name: good}) is not None
    for bad in ("0123456789abcde", "whsec_0123456789abcde", "whsec_not*base64*at*all"):
        error = refusal({}, more | {name: bad})
        assert error.setting == name
        assert bad not in str(error)


def test_a_credit_hook_needs_its_address_and_its_secret() -> None:
    for name, value in (("credit_url", "https://billing.example/"), ("credit_secret", "0123456789abcdef")):
        error = refusal({name: value})
        assert error.setting in ("credit_url", "credit_secret")
        assert error.setting != name


def test_a_secret_cannot_be_serialised() -> None:
    for write in (msgspec.json.encode, pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(Secret(KEY))
