"""What the fuzz takes for growth."""

from __future__ import annotations

from tests.fuzz.world import label_values

BEFORE = """
# TYPE fairlead_requests_total counter
fairlead_requests_total{code="200",endpoint="a:1"} 1.0
fairlead_requests_total{code="404",endpoint="b:1"} 1.0
"""


def test_a_status_first_met_at_another_endpoint_is_no_growth() -> None:
    after = BEFORE + 'fairlead_requests_total{code="404",endpoint="a:1"} 1.0\n'
    assert label_values(after) == label_values(BEFORE)


def test_a_value_that_a_client_made_up_is_growth() -> None:
    after = BEFORE + 'fairlead_requests_total{code="404",endpoint="b:1\\",code=\\"200"} 1.0\n'
    assert label_values(after) - label_values(BEFORE) == {r'endpoint="b:1\",code=\"200"'}


def test_a_metric_of_a_new_name_is_growth() -> None:
    after = BEFORE + "# TYPE fairlead_made_up_total counter\n"
    assert label_values(after) - label_values(BEFORE) == {"fairlead_made_up_total"}


def test_the_bounds_of_buckets_are_no_growth() -> None:
    assert label_values(BEFORE + 'fairlead_requests_total_bucket{le="0.5"} 1.0\n') == label_values(BEFORE)


def test_the_parts_that_a_metric_has_from_its_first_value_on_are_no_growth() -> None:
    tenths = "".join(f'fairlead_calibration_in_time_ratio{{tenth="{n}"}} 1.0\n' for n in range(1, 11))
    assert label_values(BEFORE + tenths) == label_values(BEFORE)
