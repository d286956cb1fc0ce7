// SPDX-License-Identifier: Apache-2.0
// A library needs one source of its own to be linked; everything else in it comes from the rooms.
