# SPDX-License-Identifier: Apache-2.0
"""States and tensors in single files: save, load, update. Stands on _base."""
