// SPDX-License-Identifier: Apache-2.0
// Before Python 3.14, a daemon thread that wants the GIL while the interpreter ends is ended by
// pthread_exit(), also in the middle of a callback of ours. That unwinds the stack: frames of this
// module would give objects back without the GIL, or end the process at the first noexcept. Here
// the thread stops in front of them, as Python 3.14 does it, until the process is gone.
//
// The unwinder asks the personality routine of each frame that has something to do; the linker
// puts the one below in its place for this module (--wrap).
#include <Python.h>
#include <unistd.h>
#include <unwind.h>

extern "C" {

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names.
_Unwind_Reason_Code __real___gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class,
                                                _Unwind_Exception*, _Unwind_Context*);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception,
                                                _Unwind_Context* context) {
    if ((actions & _UA_FORCE_UNWIND) != 0 && Py_IsInitialized() == 0) {
        while (true) {
            ::pause();
        }
    }
    return __real___gxx_personality_v0(version, actions, kind, exception, context);
}
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"
