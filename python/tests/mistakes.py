# SPDX-License-Identifier: Apache-2.0
"""The rules that each message about a mistake keeps."""

import re

MESSAGE_MAX = 700
# Words by which a message says what is expected, or what to call, give, check.
ADVICE = re.compile(
    r"expected|give |open |did you mean|ask for|make |check |choose|save |move |use |go through|add |"
    r"only local paths|reads it|loads (it|its)|comes first|nothing was read|it is (text|empty)|it begins with|"
    r"which numpy.load|it has no offsets|there (is|are) \d|remove|end it in|copy |list\(\)|"
    r"write each|not writable|wait|run |name |install|convert|read it|the least that works|unstream\(\)|set it|"
    r"its names are"
)


def check(said, words):
    """words: what the message must have."""
    assert not [word for word in words if word not in said], said
    assert len(said) <= MESSAGE_MAX and "\n" not in said.strip(), said
    # Nothing of the inside: addresses, signatures of the binding, names of temporary files.
    assert not re.search(r"0x[0-9a-f]{6,}|nanobind|std::|\.tmp\b|incompatible function arguments", said), said
    assert ADVICE.search(said), said
