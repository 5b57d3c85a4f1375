"""Outlooks: more time, more images and larger images promise more, and trials decide."""

from dataclasses import replace

import pytest

from onsight.tune.auto.outlook import (
    Outlook,
    Task,
    best_of,
    choose,
    pretrained_outlook,
    scratch_outlook,
)
from onsight.tune.auto.trials import Tried

TASK = Task(training=1000, others=300, seconds=60.0, classes=10, views=2, is_limited=True)
NET = Tried(right=40, judged=100, trained=300, seen=900, image_seconds=1e-3)
HEAD = Tried(right=80, judged=200, trained=200, seen=200, image_seconds=5e-3)
SIDES = [224, 160, 128, 96]
FIELDS = {"model": "net", "pretrained": True}


def head(task=TASK, tried=HEAD):
    return pretrained_outlook("net", FIELDS, tried, 128, SIDES, task)


def test_more_time_promises_fewer_mistakes():
    errors = [
        scratch_outlook("compact", {}, NET, replace(TASK, seconds=seconds)).error
        for seconds in (1, 10, 60, 600)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] < 1


def test_a_net_that_learned_fast_in_its_trial_promises_more():
    slow, fast = (replace(NET, shorter=(right, 300)) for right in (39, 5))
    errors = [scratch_outlook("sprint", {}, one, TASK).error for one in (slow, NET, fast)]
    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == 3


def test_new_images_count_for_more_than_seen_ones():
    few = scratch_outlook("compact", {}, NET, TASK)
    many = scratch_outlook("compact", {}, NET, replace(TASK, training=50_000))
    assert many.error < few.error


FROZEN = replace(TASK, is_frozen=True)


@pytest.mark.parametrize(("seconds", "side"), [(600, "224"), (14, "160"), (11, "128"), (5, "96")])
def test_a_head_takes_the_largest_images_there_is_time_for(seconds, side):
    outlook = head(replace(FROZEN, seconds=seconds))
    assert outlook.fields["image_size"] == side
    assert outlook.fields["freeze"]


def test_a_head_is_no_outlook_where_even_the_others_take_longer():
    assert head(replace(FROZEN, seconds=2)) is None


def test_fewer_images_than_in_the_trial_mean_more_mistakes():
    errors = [head(replace(FROZEN, seconds=seconds)).error for seconds in (4, 4.5, 5)]
    assert errors == sorted(errors, reverse=True)


def test_fine_tuning_is_for_those_with_time():
    assert head(replace(TASK, seconds=16)).fields["freeze"]
    tuned = head(replace(TASK, seconds=600))
    assert "freeze" not in tuned.fields
    assert "epochs" not in tuned.fields  # the budget tells
    assert tuned.error < head(replace(FROZEN, seconds=600)).error


def test_without_a_budget_fine_tuning_takes_the_epochs_there_is_time_for():
    tuned = head(replace(TASK, seconds=200, is_limited=False))
    assert "freeze" not in tuned.fields
    assert tuned.fields["epochs"] >= 1


def test_too_few_images_are_not_fine_tuned():
    assert head(replace(TASK, training=150, seconds=600)).fields["freeze"]


def test_half_the_images_show_how_much_more_would_help():
    steep = replace(HEAD, half=(40, 200))
    flat = replace(HEAD, half=(79, 200))
    usual, helped, not_helped = (head(tried=one).error for one in (HEAD, steep, flat))
    assert helped < usual < not_helped


def test_the_best_outlook_wins_and_the_reason_names_all():
    outlooks = [scratch_outlook("compact", {"model": "compact"}, NET, TASK), head()]
    choice, fields = choose(outlooks, "tried: this and that")
    best = min(outlooks, key=lambda one: one.error)
    assert best.error < 0.8 * max(one.error for one in outlooks)
    assert fields is best.fields
    assert choice.value == fields["model"]
    assert choice.figure == round(1 - best.error, 4)
    assert all(one.name in choice.reason for one in outlooks)
    assert "this and that" in choice.reason


def test_a_close_race_goes_to_what_usually_wins():
    usual = Outlook("usual", {"model": "usual"}, 0.20, 100)
    close, ahead = (
        Outlook("close", {"model": "close"}, 0.17, 100),
        Outlook("ahead", {"model": "ahead"}, 0.15, 100),
    )
    assert choose([usual, close], "")[0].value == "usual"
    assert choose([usual, close, ahead], "")[0].value == "ahead"


def test_without_a_budget_a_head_has_time_for_all_images_or_is_not_offered():
    task = replace(FROZEN, seconds=2, is_limited=False)
    assert head(task) is None
    assert head(replace(task, seconds=21)).fields["image_size"] == "128"


def test_the_cheaper_one_wins_unless_a_later_one_is_clearly_ahead():
    small, same, better = (Outlook(name, {}, error, 100) for name, error in NAMED.items())
    assert best_of([small, same]) is small
    assert best_of([small, same, better]) is better


def test_a_trial_on_few_images_is_no_reason_to_leave_what_usually_wins():
    usual, ahead = Outlook("usual", {}, 0.5, 48), Outlook("ahead", {}, 0.1, 400)
    assert best_of([usual, ahead]) is usual
    assert best_of([replace(usual, judged=100), ahead]) is ahead


NAMED = {"small": 0.10, "same": 0.09, "better": 0.07}
