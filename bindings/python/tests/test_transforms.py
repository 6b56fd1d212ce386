"""Functional transforms, batches of gradients, and how often a call is compiled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msdeform
import pytest
import torch
from msdeform import functional
from oracle import Case, assert_close, make_case, reference, reference_gradients
from torch import Tensor

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])

CASE = make_case()
SMALL = make_case(batch=2, shapes=((3, 4), (2, 2)), heads=2, channels=2, queries=2, points=2).to(torch.float64)
# Levels as a list, and as a tensor that the operator reads itself.
FORMS: dict[str, Callable[[Case], Callable[..., Tensor]]] = {
    "list": lambda case: lambda *tensors: msdeform.ms_deform_attn(tensors[0], case.shapes, None, *tensors[1:]),
    "tensor": lambda case: (
        lambda *tensors: torch.ops.msdeform.ms_deform_attn.tensor_levels(
            *tensors, torch.tensor(case.shapes), None, None
        )
    ),
}
forms = pytest.mark.parametrize("form", FORMS)
needs_vmap = pytest.mark.skipif(TORCH < (2, 5), reason="torch 2.5 has rules for vmap first")


def exact(case: Case) -> Callable[..., Tensor]:
    return lambda *tensors: reference(replace(case, value=tensors[0], locations=tensors[1], weights=tensors[2]))


@forms
def test_func_grad_and_vjp_agree_with_the_reference(form: str) -> None:
    attend, grad_output = FORMS[form](CASE), torch.randn(2, 11, 32)
    expected = reference_gradients(CASE, grad_output)
    found = torch.func.grad(lambda *tensors: (attend(*tensors) * grad_output).sum(), argnums=(0, 1, 2))(*CASE.tensors)
    _, pull_back = torch.func.vjp(attend, *CASE.tensors)
    for gradients in (found, pull_back(grad_output)):
        for gradient, wanted in zip(gradients, expected, strict=True):
            assert_close(gradient, wanted, 1e-5)
    alone = torch.func.grad(lambda locations: (attend(CASE.value, locations, CASE.weights) * grad_output).sum())
    assert_close(alone(CASE.locations), expected[1], 1e-5)


def test_func_grad_agrees_with_finite_differences() -> None:
    attend = FORMS["list"](SMALL)
    direction = [torch.randn_like(tensor) for tensor in SMALL.tensors]

    def loss(*tensors: Tensor) -> Tensor:
        return attend(*tensors).square().sum()

    slope = sum(
        (gradient * step).sum()
        for gradient, step in zip(torch.func.grad(loss, argnums=(0, 1, 2))(*SMALL.tensors), direction, strict=True)
    )
    ahead, behind = (
        loss(*(tensor + sign * 1e-6 * step for tensor, step in zip(SMALL.tensors, direction, strict=True)))
        for sign in (1, -1)
    )
    assert abs(float(slope - (ahead - behind) / 2e-6)) <= 1e-6 * abs(float(slope))


@needs_vmap
@forms
def test_jacobians_agree_with_the_reference(form: str) -> None:
    attend = FORMS[form](SMALL)
    expected = torch.autograd.functional.jacobian(exact(SMALL), SMALL.tensors)
    by_transform = torch.func.jacrev(attend, argnums=(0, 1, 2))(*SMALL.tensors)
    vectorised = torch.autograd.functional.jacobian(attend, SMALL.tensors, vectorize=True)
    for found in (by_transform, vectorised):
        for jacobian, wanted in zip(found, expected, strict=True):
            assert_close(jacobian, wanted, 1e-10)


@forms
@pytest.mark.parametrize("subset", [(0, 1, 2), (0,), (1,), (2,), (0, 2)], ids=str)
def test_a_batch_of_gradients_is_one_call(form: str, subset: tuple[int, ...]) -> None:
    case = CASE.requires_grad()
    asked = [case.tensors[index] for index in subset]
    output = FORMS[form](CASE)(*case.tensors)
    batch = torch.randn(3, *output.shape)
    found = torch.autograd.grad(output, asked, batch, is_grads_batched=True, retain_graph=True)
    for index, grad_output in enumerate(batch):
        for gradient, wanted in zip(
            found, torch.autograd.grad(output, asked, grad_output, retain_graph=True), strict=True
        ):
            assert_close(gradient[index], wanted, 1e-6)


def test_a_batch_of_gradients_may_be_another_threads() -> None:
    # As autograd's own, one for each GPU: they know nothing of the batch that the calling thread is in.
    backward = torch.ops.msdeform.ms_deform_attn_backward.tensor_levels

    def gradients(grad_output: Tensor) -> Any:
        with ThreadPoolExecutor(1) as pool:
            rest = torch.tensor(CASE.shapes), None, None, [True, True, True]
            return pool.submit(backward, grad_output, *CASE.tensors, *rest).result(60)

    batch = torch.randn(3, *reference(CASE).shape)
    found: Any = torch._vmap_internals._vmap(gradients)(batch)
    for index, grad_output in enumerate(batch):
        for gradient, wanted in zip(found, reference_gradients(CASE, grad_output), strict=True):
            assert_close(gradient[index], wanted, 1e-5)


@needs_vmap
def test_gradients_of_each_image() -> None:
    def loss(*tensors: Tensor) -> Tensor:
        return FORMS["list"](CASE)(*(tensor[None] for tensor in tensors)).square().sum()

    leaves = CASE.requires_grad().tensors
    expected = torch.autograd.grad(FORMS["list"](CASE)(*leaves).square().sum(), leaves)
    found = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*CASE.tensors)
    for gradient, wanted in zip(found, expected, strict=True):
        assert_close(gradient, wanted, 1e-5)
    shared = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims=(None, 0, 0))(
        CASE.value[0], CASE.locations, CASE.weights
    )
    same = [Case(CASE.value[:1], CASE.shapes, x[None], w[None]) for x, w in zip(*CASE.tensors[1:], strict=True)]
    for index, case in enumerate(same):
        grad_output = 2 * reference(case)
        for gradient, wanted in zip(shared, reference_gradients(case, grad_output), strict=True):
            assert_close(gradient[index], wanted[0], 1e-5)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
def test_functional_call_of_the_layer(as_tensor: bool) -> None:
    layer = msdeform.MSDeformAttn(d_model=32, n_levels=3, n_heads=4, n_points=3)
    shapes: Any = torch.tensor(CASE.shapes) if as_tensor else CASE.shapes
    arguments = torch.randn(2, 5, 32), torch.rand(2, 5, 3, 2), torch.randn(2, 141, 32), shapes
    parameters = dict(layer.named_parameters())
    found = torch.func.grad(lambda given: torch.func.functional_call(layer, given, arguments).square().sum())(
        parameters
    )
    layer(*arguments).square().sum().backward()
    for name, parameter in parameters.items():
        assert parameter.grad is not None
        assert_close(found[name], parameter.grad, 1e-5, name)


def test_transforms_compile() -> None:
    torch._dynamo.reset()
    attend = FORMS["list"](CASE)
    gradient = torch.func.grad(lambda value: attend(value, CASE.locations, CASE.weights).sum())
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    assert_close(compiled(CASE.value), reference_gradients(CASE, torch.ones(2, 11, 32))[0], 1e-5)


# Compiled once -------------------------------------------------------------------------------------------------


def function_call(case: Case) -> tuple[Callable[..., Tensor], tuple[Any, ...], tuple[Tensor, ...]]:
    return (lambda *tensors: FORMS["list"](CASE)(*tensors)), case.tensors, case.tensors


def layer_call(case: Case) -> tuple[Callable[..., Tensor], tuple[Any, ...], tuple[Tensor, ...]]:
    layer = msdeform.MSDeformAttn(d_model=32, n_levels=3, n_heads=4, n_points=3)
    arguments = torch.randn(2, 5, 32), torch.rand(2, 5, 3, 2), torch.randn(2, 141, 32), CASE.shapes
    return layer, arguments, tuple(layer.parameters())


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("make", [function_call, layer_call])
def test_two_calls_are_compiled_once(make: Any, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a process that has called nothing yet.
    monkeypatch.setattr(functional, "_attend", None)
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters
    counted.clear()
    call, arguments, leaves = make(CASE.requires_grad() if training else CASE)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(training), torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            output = compiled(*arguments)
            if training:
                torch.autograd.grad(output.square().sum(), leaves)
            monkeypatch.setattr(functional, "_attend", functional._import_attend())
    assert counted["stats"]["unique_graphs"] == 1, counted["stats"]


def test_the_first_call_of_a_process_is_compiled_once() -> None:
    program = """
import msdeform, torch
compiled = torch.compile(msdeform.ms_deform_attn, fullgraph=True, backend="eager")
arguments = torch.randn(1, 6, 2, 4), [(2, 3)], None, torch.rand(1, 5, 2, 1, 2, 2), torch.rand(1, 5, 2, 1, 2)
with torch._dynamo.config.patch(error_on_recompile=True):
    first = compiled(*arguments)
    msdeform.ms_deform_attn(*arguments)
    assert torch.equal(first, compiled(*arguments))
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
