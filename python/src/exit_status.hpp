// SPDX-License-Identifier: Apache-2.0
// The exit status of a program whose background save failed, where no call raised that.
//
//     note_unheard()      a failure was not raised: at most a warning said so
//     report_unheard()    at the end of the interpreter: prints them, and sees to it that the exit
//                         status of the process is not 0
//
// The atexit module of Python cannot change the status: C's on_exit() can. A status other than 0
// stays. Only the process that began the save is concerned, and only where the process runs
// Python's own main(): the status of another program that has Python in it belongs to that program.
// A child of multiprocessing ends without exit(): its status is in penstock/_base/children.py.
#pragma once

#include <string>

namespace penstock::python {

/// All with the GIL.
void note_unheard(const std::string& failure);
/// Prints each once. Whether there were any in this process.
bool report_unheard();

}  // namespace penstock::python
