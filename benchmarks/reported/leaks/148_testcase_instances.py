# kind: a home-made runner flattens the suite into a list and runs the test cases from it, the instances with their setUp tensors live until the end; after scalative/haas issue 191
import time
import unittest

import torch
import torch.nn.functional as F


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def make_parity_test(kernel, dilation, groups, channels):
    def test(self):
        weight = self.weight[:channels, : channels // groups, :kernel, :kernel]
        x = self.images[:, :channels]
        pad = dilation * (kernel - 1) // 2
        got = F.conv2d(x, weight, padding=pad, dilation=dilation, groups=groups)
        cols = F.unfold(x, kernel, dilation=dilation, padding=pad)
        n, _, positions = cols.shape
        cols = cols.view(n, groups, -1, positions)
        w = weight.reshape(groups, channels // groups, -1)
        want = torch.einsum("gok,ngkp->ngop", w, cols).reshape(n, channels, *x.shape[2:])
        self.expected = want  # ALSO
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)

    return test


class ConvParityTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(12)
        self.images = torch.randn(8, 8, 64, 64, device="cuda")  # LEAK
        self.weight = torch.randn(8, 8, 5, 5, device="cuda")

    def tearDown(self):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


for kernel in (1, 3, 5):
    for dilation in (1, 2, 3):
        for channels in (4, 8):
            for groups in (1, 2, 4):
                for repeat in range(3):
                    name = f"test_k{kernel}_d{dilation}_c{channels}_g{groups}_{repeat}"
                    setattr(ConvParityTest, name, make_parity_test(kernel, dilation, groups, channels))


class ProgressRunner:
    def __init__(self, every=54):
        self.every = every

    def run(self, suite):
        cases = list(flatten(suite))  # ALSO
        result = unittest.TestResult()
        start = time.time()
        for number, case in enumerate(cases, 1):
            case.run(result)
            if number % self.every == 0:
                bad = len(result.failures) + len(result.errors)
                print(f"[{number}/{len(cases)}] {bad} bad, {time.time() - start:.1f} s, last {case.id()}")
        return result


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(ConvParityTest)
    result = ProgressRunner().run(suite)
    assert result.wasSuccessful(), result.failures[:1] + result.errors[:1]
