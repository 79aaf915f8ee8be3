"""portable.integrations.float8: which linears are converted, and what stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import portable
from portable.errors import IntegrationError
from portable.integrations.float8 import Float8Linear, convert_to_float8_training


class Special(nn.Linear):
    pass


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 33), nn.ReLU(), nn.ModuleDict({"head": nn.Linear(33, 5, bias=False)})["head"]
    )


def kinds(converted):
    return [type(each) for each in converted]


def test_every_linear_is_converted_in_place_with_its_own_parameters():
    given = model()
    before = dict(given.named_parameters())
    assert convert_to_float8_training(given) is given
    assert kinds(given) == [Float8Linear, nn.ReLU, Float8Linear]
    assert all(each is before[name] for name, each in given.named_parameters())
    assert "recipe='rowwise'" in repr(given)
    x = torch.randn(4, 20)
    y = given(x)
    hidden = portable.linear_fp8(x, given[0].weight, given[0].bias).relu()
    assert torch.equal(y, portable.linear_fp8(hidden, given[2].weight))
    y.sum().backward()
    assert all(each.grad is not None for each in given.parameters())


def test_the_filter_gets_qualified_names_and_subclasses_stay():
    given = nn.Module()
    given.block, given.head, given.special = model(), nn.Linear(5, 7), Special(2, 2)
    seen = []

    def chosen(module, name):
        seen.append(name)
        return name != "head"

    convert_to_float8_training(given, module_filter_fn=chosen, recipe="rowwise_with_gw_hp")
    assert sorted(seen) == ["block.0", "block.2", "head"]
    assert kinds(given.block) == [Float8Linear, nn.ReLU, Float8Linear]
    assert (type(given.head), type(given.special)) == (nn.Linear, Special)
    assert given.block[0].recipe == "rowwise_with_gw_hp"


def test_a_linear_itself_answers_a_new_one():
    linear = nn.Linear(6, 4).eval()
    made = convert_to_float8_training(linear)
    assert type(made) is Float8Linear and made.weight is linear.weight and not made.training


def test_state_dicts_and_copies_are_those_of_linears():
    given = convert_to_float8_training(model(), float8_dtype=torch.float8_e4m3fnuz)
    plain = model()
    plain.load_state_dict(given.state_dict())
    copied = copy.deepcopy(given)
    assert "float8_e4m3fnuz" in repr(copied)
    x = torch.randn(3, 20)
    assert torch.equal(copied(x), given(x))


def test_what_it_refuses_and_says():
    with pytest.raises(IntegrationError, match="recipe is 'tensorwise'; expected one of rowwise"):
        convert_to_float8_training(model(), recipe="tensorwise")
    with pytest.raises(IntegrationError, match=r"no nn\.Linear of Sequential was found"):
        convert_to_float8_training(model(), module_filter_fn=lambda module, name: False)
