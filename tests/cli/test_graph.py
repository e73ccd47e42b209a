"""The drawn tree: one lane for each line that goes on, joined where it began."""

from __future__ import annotations

from savegame.cli import graph
from savegame.present.lanes import MOST_LANES


def draw_rows(*points: tuple[str, str | None], head: str | None = None) -> list[str]:
    return [line for row in graph.draw_rows(points, head) for line in (row.joins, row.line) if line]


def test_a_line_stays_one() -> None:
    assert draw_rows(("c", "b"), ("b", "a"), ("a", None)) == ["●", "●", "●"]


def test_a_branch_joins_where_it_began() -> None:
    assert draw_rows(("d", "b"), ("c", "b"), ("b", "a"), ("a", None)) == ["●", "│ ●", "├─╯", "●", "●"]


def test_several_branches_join_at_once_and_cross_others() -> None:
    points = (("f", "a"), ("e", "b"), ("d", "a"), ("c", "a"), ("b", "a"), ("a", None))
    assert draw_rows(*points) == ["●", "│ ●", "│ │ ●", "│ │ │ ●", "│ ● │ │", "├─┴─┴─╯", "●"]
    points = (("e", "a"), ("d", "b"), ("c", "a"), ("a", "b"), ("b", None))
    assert draw_rows(*points) == ["●", "│ ●", "│ │ ●", "├─┼─╯", "● │", "├─╯", "●"]


def test_the_first_lane_is_the_heads() -> None:
    points = (("d", "b"), ("c", "b"), ("b", "a"), ("a", None))
    assert draw_rows(*points, head="c") == ["  ●", "● │", "├─╯", "●", "●"]
    assert draw_rows(*points, head="b") == ["  ●", "  │ ●", "╭─┴─╯", "●", "●"]
    assert draw_rows(*points, head="older than all of them")[0] == "●"


def test_a_lane_that_ended_is_used_again() -> None:
    points = (("e", "a"), ("d", "gone"), ("c", "a"), ("b", "gone too"), ("a", None))
    assert draw_rows(*points) == ["●", "│ ●", "│ ●", "│ │ ●", "├─╯", "●"]


def test_a_thousand_branches_have_a_picture_that_fits() -> None:
    points = [(str(number), "root") for number in range(1000)] + [("root", None)]
    assert max(map(len, draw_rows(*points))) < 2 * MOST_LANES
    assert draw_rows(*points)[-1] == "●"


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw_rows() == []
