"""The list of op names that loads nothing is the list of ops that are defined."""

from accel.ops.names import OP_NAMES
from accel.ops.spec import all_specs, op_spec


def test_the_light_list_of_names_is_the_set_of_specs() -> None:
    assert set(all_specs()) == OP_NAMES


def test_each_spec_says_all_that_the_table_of_ops_prints() -> None:
    for name, spec in all_specs().items():
        assert name == spec.name
        assert spec.summary.endswith(".")
        assert spec.source
        assert spec.nan in {"propagate", "ignore", "bytes"}
        assert set(spec.tolerance) >= set(spec.args[0].dtypes)
        assert op_spec(name) is spec
