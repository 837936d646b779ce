# kind: hand-written DLPack consumer takes tensors over by renaming their capsules and never calls the deleter; from cupy/cupy PR 1445 (pytorch/pytorch issue 9261) and iree-org/iree issue 20849
import ctypes

import torch
from torch import nn
from torch.utils.dlpack import to_dlpack

api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.restype = ctypes.c_int
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

FRESH, USED = b"dltensor", b"used_dltensor"


class DLDevice(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("index", ctypes.c_int)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", DLDevice), ("ndim", ctypes.c_int), ("dtype", DLDataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class KernelArgument:
    """What a launch needs to know about a buffer."""

    def __init__(self, capsule):
        address = api.PyCapsule_GetPointer(capsule, FRESH)
        t = DLTensor.from_address(address)
        self.data = t.data
        self.shape = tuple(t.shape[i] for i in range(t.ndim))
        self.bits = t.dtype.bits
        api.PyCapsule_SetName(capsule, USED)  # LEAK


class Launcher:
    def __init__(self):
        self.launches = 0
        self.bytes = 0

    def launch(self, *tensors):
        args = [KernelArgument(to_dlpack(t)) for t in tensors]  # ALSO
        self.launches += 1
        for a in args:
            n = a.bits // 8
            for s in a.shape:
                n *= s
            self.bytes += n


def main():
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 256)).cuda().eval()
    launcher = Launcher()
    with torch.no_grad():
        for step in range(250):
            rays = torch.randn(96, 128, device="cuda")
            features = trunk(rays)
            launcher.launch(features)
            features.mul_(0.5)


if __name__ == "__main__":
    main()
