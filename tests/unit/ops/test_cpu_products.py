"""oneDNN's products in place of MKL's: the same numbers, and only where oneDNN is fast."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.ops import cpu_products
from comera_dist.ops.cpu_products import DEEP, LEAST, mkl_is_slow, onednn_kernels, use_fastest_products, write_products

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")

LARGE = (160, 128, 144)  # rows, inner, columns: above LEAST


@pytest.fixture(autouse=True)
def torchs_kernels():
    """Undoes `use_fastest_products` of this process before and after a test; the next start of processes repeats it."""
    drop_kernels()
    yield
    drop_kernels()


def drop_kernels():
    library = use_fastest_products() if use_fastest_products.cache_info().currsize else None
    use_fastest_products.cache_clear()
    if library is not None:
        library._destroy()


@pytest.fixture
def products(monkeypatch):
    """The shapes that went to oneDNN, while its kernels are in place."""
    made, of_batch, with_bias = [], cpu_products._any_order, cpu_products._product

    def counted(left, right):
        made.append((*left.shape, right.shape[1]))
        return of_batch(left, right)

    def counted_with_bias(left, right, bias):
        if bias is not None:  # the others are counted above
            made.append((*left.shape, right.shape[1]))
        return with_bias(left, right, bias)

    monkeypatch.setattr(cpu_products, "_any_order", counted)
    monkeypatch.setattr(cpu_products, "_product", counted_with_bias)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    library = onednn_kernels()
    yield made
    library._destroy()


def matrices(sizes=LARGE, dtype=torch.float32):
    rows, inner, columns = sizes
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(rows, inner, generator=generator, dtype=dtype),
        torch.randn(inner, columns, generator=generator, dtype=dtype),
    )


def assert_product(found, left, right, added=0.0):
    exact = left.double() @ right.double() + added
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sizes", [LARGE, (144, 160, 128)])
@pytest.mark.parametrize("left_is_turned", [False, True])
@pytest.mark.parametrize("right_is_turned", [False, True])
def test_products_of_all_orders_are_exact(products, sizes, left_is_turned, right_is_turned):
    left, right = matrices(sizes)
    left = left.t().contiguous().t() if left_is_turned else left
    right = right.t().contiguous().t() if right_is_turned else right
    found = left @ right
    assert_product(found, left, right)
    assert found.is_contiguous()
    assert products == [sizes]


def test_a_left_matrix_may_be_columns_of_a_wider_one(products):
    left, right = matrices((160, 384, 144))
    assert_product(left[:, 128:256] @ right[:128], left[:, 128:256], right[:128])
    assert products == [LARGE]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda left: left, lambda right: right[:, :100].repeat(1, 2)[:, :144]),  # gaps between the rows
        (lambda left: left[:1].expand(160, -1), lambda right: right),
        (lambda left: left[:80], lambda right: right),  # fewer multiplications than LEAST
        (lambda left: left[:0], lambda right: right),
        (lambda left: left.double(), lambda right: right.double()),
        (lambda left: left.bfloat16().float()[:, ::2], lambda right: right[::2]),
    ],
)
def test_other_products_stay_with_torch(products, left, right):
    whole_left, whole_right = matrices()
    found, other = left(whole_left), right(whole_right)
    assert_product(found @ other, found, other)
    assert products == []


def test_a_linear_layer_with_its_backward_pass_goes_to_onednn(products):
    x, weight = (t.requires_grad_() for t in (matrices()[0], matrices()[1].t().contiguous()))
    bias = torch.linspace(-1, 1, 144, requires_grad=True)
    y = F.linear(x, weight, bias)
    assert_product(y, x, weight.t(), bias.double())
    y.backward(error := torch.cos(y.detach()))
    assert_product(x.grad, error, weight)
    assert_product(weight.grad, error.t(), x)
    torch.testing.assert_close(bias.grad, error.sum(0))
    assert sorted(products) == sorted([LARGE, (160, 144, 128), (144, 160, 128)])


@pytest.mark.parametrize("bias", [torch.arange(288.0)[::2], torch.ones(1).expand(144)])
def test_a_bias_with_gaps_stays_with_torch(products, bias):
    left, right = matrices()
    assert_product(torch.addmm(bias, left, right), left, right, bias.double())
    assert products == []


def test_sums_of_products_are_exact(products):
    left, right = matrices(DEEP_SUM := (16, DEEP, 512))
    total = torch.ones(16, 512)
    assert_product(total.clone().addmm_(left, right), left, right, 1.0)
    assert_product(torch.addmm(total, left, right), left, right, 1.0)
    assert products == [DEEP_SUM]  # the second sum stays with torch
    assert_product(total.clone().addmm_(left, right, beta=0.5, alpha=2), 2 * left, right, 0.5)
    assert_product(torch.addmm(torch.ones(512), left, right, beta=0.5, alpha=2), 2 * left, right, 0.5)
    held = total.clone()
    assert held.addmm_(left, right) is held
    assert products == 2 * [DEEP_SUM]


def test_a_sum_in_place_of_few_inner_numbers_stays_with_torch(products):
    left, right = matrices()
    assert_product(torch.ones(160, 144).addmm_(left, right), left, right, 1.0)
    assert products == []


def test_batched_products_are_exact(products):
    left, right = (matrix.repeat(3, 1, 1) for matrix in matrices())
    left[1] *= 2
    right[2] -= 1
    assert_product(left @ right, left, right)
    assert products == 3 * [LARGE]
    added = torch.linspace(0, 1, 3 * 160 * 144).view(3, 160, 144)
    found = torch.baddbmm(added, left, right, beta=0.5, alpha=-2)
    assert_product(found, -2 * left, right, 0.5 * added.double())
    assert products == 6 * [LARGE]


def test_a_batched_sum_with_a_beta_of_zero_drops_undefined_numbers(products):
    left, right = (matrix.repeat(2, 1, 1) for matrix in matrices())
    assert_product(torch.baddbmm(torch.full((2, 160, 144), torch.nan), left, right, beta=0), left, right)
    assert products == 2 * [LARGE]


@pytest.mark.parametrize("right_is_turned", [False, True])
def test_large_gapped_matrices_of_a_batch_are_copied(products, right_is_turned):
    sizes = (160, 256, 144)
    left, right = (matrix.repeat(2, 1, 1) for matrix in matrices(sizes))
    right[1] *= 2
    gapped = right.transpose(0, 1).contiguous().transpose(0, 1)
    if right_is_turned:
        gapped = right.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not cpu_products._is_dense(gapped[0])
    assert_product(left @ gapped, left, right)
    assert_product(torch.baddbmm(torch.ones_like(left @ gapped), left, gapped), left, right, 1.0)
    assert products == 6 * [sizes]


@pytest.mark.parametrize("inner", [96, 128])
def test_batches_are_written_to_their_places(products, inner):
    """As `block_product` writes its outputs: left matrices are turned and have gaps, and so have the results."""
    left, right = (matrix.repeat(2, 1, 1) for matrix in matrices((320, inner, 144)))
    left[1] *= 2
    turned = left.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    out = torch.full((320, 2, 144), torch.nan).transpose(0, 1)
    assert torch.bmm(turned, right, out=out) is out
    assert_product(out, left, right)
    assert products == (2 * [(320, 128, 144)] if inner == 128 else [])


def test_an_output_of_another_shape_is_resized_as_by_torch(products):
    left, right = (matrix.repeat(2, 1, 1) for matrix in matrices())
    for some in (left, left[:, :80]):
        out = torch.empty(0)
        assert torch.bmm(some, right, out=out) is out
        assert_product(out, some, right)


@pytest.mark.parametrize("slow", [False, True])
def test_products_are_written_with_and_without_onednn(monkeypatch, slow):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(cpu_products, "mkl_is_slow", lambda: slow)
    left, right = (matrix.repeat(2, 1, 1) for matrix in matrices())
    for uses_fastest in (False, True):
        if uses_fastest:
            use_fastest_products()
        for some in (left, left[:, :80]):
            out = torch.full((some.shape[1], 2, 144), torch.nan).transpose(0, 1)
            write_products(some, right, out)
            assert_product(out, some, right)


def test_small_batches_stay_with_torch_on_several_threads(products, monkeypatch):
    left, right = (matrix.repeat(2, 1, 1) for matrix in matrices())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # to which MKL deals a batch out
    assert_product(left @ right, left, right)
    assert products == []


def test_batches_of_small_or_gapped_matrices_stay_with_torch(products):
    left, right = (matrix.repeat(2, 1, 1) for matrix in matrices())
    for some, other in [
        (left[:, :80], right),
        (left, right.transpose(0, 1).contiguous().transpose(0, 1)),  # rows of both matrices in turn
        (left[:0], right[:0]),
    ]:
        assert_product(some @ other, some, other)
        assert_product(torch.baddbmm(torch.ones(144), some, other), some, other, 1.0)
    assert_product(torch.baddbmm(torch.ones(144), left, right), left, right, 1.0)
    assert products == []


@pytest.mark.parametrize(
    ("product", "left", "right", "sentence"),
    [
        (torch.mm, (200, 128), (127, 256), "shapes cannot be multiplied"),
        (torch.mm, (128,), (128, 256), "must be a matrix"),
        (F.linear, (200, 128), (256, 127), "shapes cannot be multiplied"),
        (lambda x, y: torch.zeros(200, 256).addmm_(x, y), (200, 512), (511, 256), "shapes cannot be multiplied"),
        (lambda x, y: torch.zeros(200, 256).double().addmm_(x, y), (200, 512), (512, 256), "must have the same dtype"),
        (lambda x, y: torch.addmm(torch.zeros(256).double(), x, y), (200, 512), (512, 256), "must have the same dtype"),
        (
            lambda x, y: torch.zeros(2, 200, 256).double().baddbmm(x, y),
            (2, 200, 128),
            (2, 128, 256),
            "must be the same",
        ),
        (torch.bmm, (2, 200, 128), (2, 127, 256), "Expected size for first two dimensions"),
        (torch.bmm, (3, 200, 128), (2, 128, 256), "Expected size for first two dimensions"),
        (torch.bmm, (200, 128), (2, 128, 256), "must be a 3D tensor"),
    ],
)
def test_mistakes_have_the_sentences_of_torch(products, product, left, right, sentence):
    with pytest.raises(RuntimeError, match=sentence):
        product(torch.zeros(left), torch.zeros(right))


def test_work_is_counted_as_before(products):
    left, right = matrices()
    with FlopCounterMode(display=False) as counter:
        left @ right
    assert counter.get_total_flops() == 2 * 160 * 128 * 144
    assert products == [LARGE]


def test_torchs_kernels_come_back(monkeypatch):
    monkeypatch.setattr(cpu_products, "_product", None)
    left, right = matrices()
    library = onednn_kernels()
    with pytest.raises(TypeError):
        left @ right
    library._destroy()
    assert_product(left @ right, left, right)


def test_repeated_products_have_the_same_bits(products):
    left, right = matrices((513, 300, 257))
    first = left @ right
    assert all(torch.equal(left.clone() @ right.clone(), first) for _ in range(5))


@pytest.mark.parametrize("slow", [False, True])
def test_a_process_multiplies_by_onednn_where_mkl_is_slow(monkeypatch, slow):
    made = []
    monkeypatch.setattr(cpu_products, "mkl_is_slow", lambda: slow)
    monkeypatch.setattr(cpu_products, "_product", lambda left, right, bias: made.append(LARGE) or left.new_ones(1))
    assert use_fastest_products() is use_fastest_products()
    left, right = matrices()
    found = left @ right
    assert made == [LARGE] * slow
    assert (found.numel() == 1) is slow


@pytest.mark.parametrize(
    ("facts", "slow"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: EPYC\n", True),
        ("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\n", False),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", False),
    ],
)
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
def test_the_processors_maker_decides(tmp_path, facts, slow):
    (tmp_path / "cpuinfo").write_text(facts)
    assert mkl_is_slow(tmp_path / "cpuinfo") is slow
    assert not mkl_is_slow(tmp_path / "absent")


def test_the_sizes_above_are_on_both_sides_of_the_limit():
    assert 160 * 128 * 144 >= LEAST > 80 * 128 * 144
