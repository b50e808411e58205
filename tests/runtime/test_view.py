"""Views: what they take, how they are rearranged, and that nothing leads outside the memory they were given."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import numpy.typing as npt
import pytest

from accel import _core
from accel.errors import InvalidArgument

Floats = npt.NDArray[np.float32]


@pytest.fixture
def cube() -> Floats:
    return np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_a_view_tells_what_it_sees(cube: Floats) -> None:
    view = _core.view(cube)
    assert view.shape == (2, 3, 4)
    assert view.strides == (12, 4, 1)
    assert view.dtype == "float32"
    assert view.nbytes == 96
    assert view.ptr == cube.ctypes.data
    assert view.contiguous
    assert view.owner is cube
    assert repr(view) == "View(float32 [2, 3, 4])"


def test_a_view_shares_memory(cube: Floats) -> None:
    view = _core.view(cube)
    view.numpy()[1, 2, 3] = -1
    assert cube[1, 2, 3] == -1


def test_views_and_their_arrays_keep_the_owner() -> None:
    owner = np.arange(4, dtype=np.float32)
    alive = weakref.ref(owner)
    view = _core.view(owner).narrow(0, 1, 2)
    del owner
    array = view.numpy()
    del view
    gc.collect()
    assert array.tolist() == [1, 2]
    del array
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "name", ["float32", "float16", "float64", "int8", "int32", "int64", "uint8", "uint32", "uint64", "bool"]
)
def test_numpy_dtypes(name: str) -> None:
    array = np.ones((2, 3), name)
    view = _core.view(array)
    assert view.dtype == name
    assert np.array_equal(view.numpy(), array)
    assert view.numpy().dtype == array.dtype


@pytest.mark.parametrize("array", [np.zeros(2, np.complex64), np.zeros(2, "U3"), np.array([None])], ids=str)
def test_other_kinds_are_refused(array: npt.NDArray[np.generic]) -> None:
    with pytest.raises(InvalidArgument, match="kind"):
        _core.view(array)


def test_foreign_byte_order_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="byte order"):
        _core.view(np.zeros(2, ">f4"))
    _core.view(np.zeros(2, "<f4"))


@pytest.mark.parametrize("wrong", [None, 1, "text", [1.0], b"x", bytearray(4)])
def test_what_is_no_tensor_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="a tensor"):
        _core.view(wrong)


def test_nine_dimensions_are_one_too_many() -> None:
    _core.view(np.zeros((1,) * 8, np.uint8))
    with pytest.raises(InvalidArgument, match="9 dimensions; the limit is 8"):
        _core.view(np.zeros((1,) * 9, np.uint8))


def test_a_scalar_and_nothing_at_all() -> None:
    assert _core.view(np.array(3, np.int32)).shape == ()
    assert _core.view(np.zeros((0, 4), np.int32)).nbytes == 0


def test_strided_arrays(cube: Floats) -> None:
    view = _core.view(cube[:, ::2, ::-1])
    assert view.shape == (2, 2, 4)
    assert not view.contiguous
    assert np.array_equal(view.numpy(), cube[:, ::2, ::-1])


def test_read_only_stays_read_only(cube: Floats) -> None:
    cube.flags.writeable = False
    view = _core.view(cube)
    for seen in (view, _core.view(view), view.select(0, 1), view.reshape([24])):
        assert not seen.numpy().flags.writeable
    cube.flags.writeable = True
    assert _core.view(cube).numpy().flags.writeable


def test_narrow_select_permute(cube: Floats) -> None:
    view = _core.view(cube)
    assert np.array_equal(view.narrow(1, 1, 2).numpy(), cube[:, 1:3])
    assert np.array_equal(view.narrow(-1, 0, 0).numpy(), cube[:, :, :0])
    assert np.array_equal(view.select(0, 1).numpy(), cube[1])
    assert np.array_equal(view.select(-1, 3).numpy(), cube[:, :, 3])
    assert np.array_equal(view.permute([2, 0, 1]).numpy(), cube.transpose(2, 0, 1))
    assert np.array_equal(view.permute([1, 0, 2]).select(0, 2).narrow(1, 1, 3).numpy(), cube[:, 2, 1:])


@pytest.mark.parametrize(("dim", "start", "length"), [(0, 0, 3), (0, 2, 1), (0, -1, 1), (1, 0, -1), (2, 2**62, 2**62)])
def test_narrow_stays_inside(cube: Floats, dim: int, start: int, length: int) -> None:
    with pytest.raises(InvalidArgument, match="narrow"):
        _core.view(cube).narrow(dim, start, length)


@pytest.mark.parametrize("dim", [3, -4])
def test_dimensions_must_exist(cube: Floats, dim: int) -> None:
    for call in (lambda: _core.view(cube).narrow(dim, 0, 1), lambda: _core.view(cube).select(dim, 0)):
        with pytest.raises(InvalidArgument, match=f"dimension {dim}"):
            call()


@pytest.mark.parametrize("index", [-1, 2])
def test_select_stays_inside(cube: Floats, index: int) -> None:
    with pytest.raises(InvalidArgument):
        _core.view(cube).select(0, index)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 3], []])
def test_permute_needs_each_dimension_once(cube: Floats, order: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="permute"):
        _core.view(cube).permute(order)


def test_reshape(cube: Floats) -> None:
    view = _core.view(cube)
    assert np.array_equal(view.reshape([6, 4]).numpy(), cube.reshape(6, 4))
    assert view.reshape([1, 24, 1]).shape == (1, 24, 1)
    with pytest.raises(InvalidArgument, match="contiguous"):
        view.permute([2, 1, 0]).reshape([24])


@pytest.mark.parametrize("shape", [[23], [-1, 24], [-4, -6], [2**32, 2**32], [0], [1] * 7 + [24, 1]])
def test_reshape_keeps_the_elements(cube: Floats, shape: list[int]) -> None:
    with pytest.raises(InvalidArgument):
        _core.view(cube).reshape(shape)


def test_dtype_reinterprets_elements_of_the_same_size() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    view = _core.view(bits, dtype="bfloat16")
    assert view.dtype == "bfloat16"
    assert view.numpy().dtype == np.uint16, "NumPy has no bfloat16, so it gets the bits"
    assert _core.view(bits, dtype="float16").numpy().dtype == np.float16
    with pytest.raises(InvalidArgument, match="sizes differ"):
        _core.view(bits, dtype="float32")
    with pytest.raises(InvalidArgument, match="unknown dtype 'half'"):
        _core.view(bits, dtype="half")


def test_strides_rearrange_inside_the_memory() -> None:
    line = np.arange(8, dtype=np.int32)
    windows = _core.view(line, shape=[4, 2], strides=[2, 1])
    assert windows.numpy().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    columns = _core.view(line, shape=[4, 2], strides=[1, 4])
    assert columns.numpy().tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert not columns.contiguous


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ([4, 2], [4, 1]),
        ([4, 2], [-1, 1]),
        ([8], [2]),
        ([4, 2], [2**62, 2**62]),
        ([4, 2], [1]),
        ([4, 2], [2, 1, 1]),
    ],
)
def test_strides_never_leave_the_memory(shape: list[int], strides: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="strides"):
        _core.view(np.zeros(8, np.int32), shape=shape, strides=strides)


def test_strides_need_a_shape() -> None:
    with pytest.raises(InvalidArgument, match="strides"):
        _core.view(np.zeros(8, np.int32), strides=[1])


class Accessors:
    """A tensor of a place without DLPack: address, shape and dtype by name."""

    def __init__(self, array: npt.NDArray[np.generic], dtype: str) -> None:
        self.array = array
        self.shape = list(array.shape)
        self.dtype = dtype

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


def test_accessors_are_enough() -> None:
    tensor = Accessors(np.arange(6, dtype=np.float32).reshape(2, 3), "framework.float32")
    view = _core.view(tensor)
    assert view.shape == (2, 3)
    assert np.array_equal(view.numpy(), tensor.array)
    assert view.owner is tensor
    assert _core.view(Accessors(np.zeros(2, np.uint16), "bfloat16")).dtype == "bfloat16"


class TestPaddle:
    """Framework tensors cross through DLPack's exchange table."""

    @pytest.fixture
    def paddle(self) -> object:
        return pytest.importorskip("paddle")

    @pytest.mark.parametrize(
        "name", ["float32", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool", "float64"]
    )
    def test_dtypes(self, paddle: object, name: str) -> None:
        tensor = paddle.ones([2, 3], dtype=name)  # type: ignore[attr-defined]
        view = _core.view(tensor)
        assert view.dtype == name
        assert view.shape == (2, 3)
        assert view.ptr == tensor.data_ptr()
        if name == "bfloat16":
            assert (view.numpy() == 0x3F80).all()
        else:
            assert (view.numpy() == 1).all()

    def test_memory_is_shared(self, paddle: object) -> None:
        tensor = paddle.zeros([4], dtype="float32")  # type: ignore[attr-defined]
        _core.view(tensor).numpy()[2] = 5
        assert float(tensor[2]) == 5

    def test_strides_arrive(self, paddle: object) -> None:
        tensor = paddle.arange(12, dtype="float32").reshape([3, 4]).transpose([1, 0])  # type: ignore[attr-defined]
        view = _core.view(tensor)
        assert view.shape == (4, 3)
        assert np.array_equal(view.numpy(), tensor.numpy())

    def test_nothing_arrives_as_nothing(self, paddle: object) -> None:
        view = _core.view(paddle.zeros([0, 4], dtype="float32"))  # type: ignore[attr-defined]
        assert (view.shape, view.nbytes) == ((0, 4), 0)

    def test_a_copy_between_framework_and_numpy(self, paddle: object) -> None:
        import accel

        with accel.open("cpu", threads=1) as device:
            tensor = device.empty([3, 5], "bfloat16")
            bits = np.arange(15, dtype=np.uint16)
            stream = device.stream()
            device.copy(tensor, bits, stream)
            stream.synchronize(30)
            assert np.array_equal(device.view(tensor).numpy().ravel(), bits)
