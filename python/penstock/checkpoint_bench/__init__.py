# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoint bench`: saves and loads of a model's state by Penstock, torch, safetensors, and fio's writes.

_models.py    the true shapes of known models, and of their training states
_sides.py     who saves and loads, and how each ends durable
_measure.py   turns, figures
__main__.py   the command line
"""
