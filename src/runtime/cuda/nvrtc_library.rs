//! The functions of NVRTC, loaded from a library that was found at run time.
//!
//! A table of our own instead of cudarc's: it takes the library from any path, never panics on a missing function,
//! and reads result codes as integers, so that a code of a newer NVRTC is no undefined behaviour.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Handle of a program inside NVRTC.
type Program = *mut c_void;

/// Oldest version whose separate programs may be compiled by several threads at once.
const OLDEST: (i32, i32) = (12, 0);

/// A version of NVRTC that has been opened.
pub struct NvrtcLibrary {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    version: (i32, i32),
    path: PathBuf,
    // Kept open as long as the function pointers above may be called. NVRTC opens its builtins by
    // bare name while it compiles, which succeeds because they are already open.
    _library: Library,
    _builtins: Option<Library>,
}

impl NvrtcLibrary {
    /// Opens `library`, after `builtins` when its path is known.
    ///
    /// # Errors
    /// Why the library is no usable NVRTC, in words.
    pub(super) fn open(library: &Path, builtins: Option<&Path>) -> Result<NvrtcLibrary, String> {
        let open = |path: &Path| {
            // SAFETY: opening a library runs its initialisers; those of NVRTC and its builtins, the only
            // files that discovery offers, set up the library's own state and nothing else.
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| error.to_string())
        };
        let builtins = builtins.map(open).transpose()?;
        let library_handle = open(library)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field that receives the pointer has the signature that NVRTC documents for this
                // function, unchanged since CUDA 11.1, and `_library` keeps the code mapped.
                *unsafe { library_handle.get($name) }.map_err(|error| error.to_string())?
            };
        }
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = function!("nvrtcVersion");
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for one write each.
        let code = unsafe { version(&mut major, &mut minor) };
        if code != 0 {
            return Err(format!("nvrtcVersion failed with {code}"));
        }
        if (major, minor) < OLDEST {
            return Err(format!("its version is {major}.{minor}, older than {}.{}", OLDEST.0, OLDEST.1));
        }
        Ok(NvrtcLibrary {
            create: function!("nvrtcCreateProgram"),
            compile: function!("nvrtcCompileProgram"),
            destroy: function!("nvrtcDestroyProgram"),
            log_size: function!("nvrtcGetProgramLogSize"),
            log: function!("nvrtcGetProgramLog"),
            ptx_size: function!("nvrtcGetPTXSize"),
            ptx: function!("nvrtcGetPTX"),
            cubin_size: function!("nvrtcGetCUBINSize"),
            cubin: function!("nvrtcGetCUBIN"),
            error_string: function!("nvrtcGetErrorString"),
            version: (major, minor),
            path: library.to_owned(),
            _library: library_handle,
            _builtins: builtins,
        })
    }

    /// Version, for example `(13, 0)`.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The library that was opened: an absolute path, or a bare name when the dynamic linker knew it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// NVRTC's name of a result code.
    pub(super) fn describe(&self, code: i32) -> String {
        // SAFETY: NVRTC accepts any code here and returns a pointer to a static string.
        let text = unsafe { (self.error_string)(code) };
        if text.is_null() {
            return "an unknown error".to_owned();
        }
        // SAFETY: not null, and NVRTC's strings end in a null byte and live as long as the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// A program of this source.
    pub(super) fn program(&self, source: &CStr, name: &CStr) -> Result<NvrtcProgram<'_>, Failed> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is valid for a write, the two strings end in a null byte, and NVRTC copies
        // them; no headers are given, so their two arrays are never read.
        let code = unsafe {
            (self.create)(&mut handle, source.as_ptr(), name.as_ptr(), 0, std::ptr::null(), std::ptr::null())
        };
        Failed::check("nvrtcCreateProgram", code)?;
        Ok(NvrtcProgram { library: self, handle })
    }
}

/// A call into NVRTC that returned something else than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) call: &'static str,
    pub(super) code: i32,
}

impl Failed {
    /// `NVRTC_ERROR_COMPILATION`: the source is at fault, and the log says why.
    pub(super) const COMPILATION: i32 = 6;
    /// `NVRTC_ERROR_INVALID_OPTION`: an option, such as the architecture, is not known to this version.
    pub(super) const INVALID_OPTION: i32 = 5;

    fn check(call: &'static str, code: i32) -> Result<(), Failed> {
        if code == 0 { Ok(()) } else { Err(Failed { call, code }) }
    }
}

/// A program inside NVRTC. Used by one thread at a time, since it is neither `Send` nor `Sync`.
pub(super) struct NvrtcProgram<'library> {
    library: &'library NvrtcLibrary,
    handle: Program,
}

impl NvrtcProgram<'_> {
    /// Compiles with these options.
    pub(super) fn compile(&self, options: &[CString]) -> Result<(), Failed> {
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: `handle` is a live program of this library; `pointers` holds as many strings as it says,
        // which outlive the call.
        let code = unsafe { (self.library.compile)(self.handle, pointers.len() as c_int, pointers.as_ptr()) };
        Failed::check("nvrtcCompileProgram", code)
    }

    /// The log of the compilation.
    pub(super) fn log(&self) -> Result<String, Failed> {
        let bytes =
            self.bytes(("nvrtcGetProgramLogSize", self.library.log_size), ("nvrtcGetProgramLog", self.library.log))?;
        Ok(text(bytes))
    }

    /// The PTX of a compiled program.
    pub(super) fn ptx(&self) -> Result<String, Failed> {
        Ok(text(self.bytes(("nvrtcGetPTXSize", self.library.ptx_size), ("nvrtcGetPTX", self.library.ptx))?))
    }

    /// The machine code of a program compiled for a real architecture.
    pub(super) fn cubin(&self) -> Result<Vec<u8>, Failed> {
        self.bytes(("nvrtcGetCUBINSize", self.library.cubin_size), ("nvrtcGetCUBIN", self.library.cubin))
    }

    /// Asks for a size, then for that many bytes.
    fn bytes(
        &self,
        size: (&'static str, unsafe extern "C" fn(Program, *mut usize) -> c_int),
        get: (&'static str, unsafe extern "C" fn(Program, *mut c_char) -> c_int),
    ) -> Result<Vec<u8>, Failed> {
        let mut bytes = 0;
        // SAFETY: `handle` is a live program of this library and `bytes` is valid for a write.
        Failed::check(size.0, unsafe { (size.1)(self.handle, &mut bytes) })?;
        let mut buffer = vec![0u8; bytes];
        if bytes > 0 {
            // SAFETY: the buffer has exactly the size that NVRTC has just asked for.
            Failed::check(get.0, unsafe { (get.1)(self.handle, buffer.as_mut_ptr().cast()) })?;
        }
        Ok(buffer)
    }
}

impl Drop for NvrtcProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is live and not used again. A failure would leave memory behind and nothing else.
        unsafe { (self.library.destroy)(&mut self.handle) };
    }
}

/// NVRTC's text without its closing null byte.
fn text(mut bytes: Vec<u8>) -> String {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
