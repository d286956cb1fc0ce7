# SPDX-License-Identifier: Apache-2.0
"""What all of the package stands on: arguments, errors, the log, futures, devices. Imports the compiled part alone."""
