"""Failures of the conformance suite are explained as those of any test."""

import pytest

pytest.register_assert_rewrite("holdfast.testing.store_conformance")
