"""Channels last of a network that flattens with `view`: fixed, or named by file and line."""

from onsight_explain.what_ifs.channels_last import ChannelsLast

SCRIPT = """\
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        x = self.conv(x)
        codes = x.view(torch.int32)
        return self.head(x.view(x.size(0), -1))
for x, y in loader:
    loss = crit(net(x), y)
    loss.backward()
"""

SAID = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 8, in <module>
    loss = crit(net(x), y)
  File "/home/me/nets.py", line 40, in forward
    return self.head(x.view(x.size(0), -1))
                     ^^^^^^^^^^^^^^^^^^^^^
RuntimeError: view size is not compatible with input tensor's size and stride
"""


def test_view_becomes_reshape_and_a_view_as_another_type_stays(script, traced):
    written = script(SCRIPT)
    after = written.fix(traced(forward=written.call("net")), channels_last_reshaped=True).after
    rows = after.decode().splitlines()
    assert "        return self.head(x.reshape(x.size(0), -1))" in rows
    assert "        codes = x.view(torch.int32)" in rows
    assert "net.to(memory_format=torch.channels_last)" in rows


def test_a_view_elsewhere_is_named_by_file_and_line():
    expected = "nets.py:40: write return self.head(x.reshape(x.size(0), -1))"
    assert ChannelsLast(True).explain_failure(SAID) == expected
    assert ChannelsLast(True).explain_failure("RuntimeError: out of memory") == ""
