# SPDX-License-Identifier: Apache-2.0
"""Numbered checkpoints in a folder. Stands on _state and _base."""
