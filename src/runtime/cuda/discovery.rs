//! Finds the NVIDIA driver and NVRTC, without LD_LIBRARY_PATH.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::{CudaError, Result};
use super::nvrtc_library::NvrtcLibrary;

/// Names that the dynamic linker is asked for, newest first.
const PLAIN_NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Folders of a CUDA installation that hold its libraries.
const TOOLKIT_FOLDERS: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];

/// Folders of Python's site-packages that hold NVRTC, for CUDA 13 and 12.
const PACKAGE_FOLDERS: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];

/// Functions of libcuda that this module or the parts of cudarc under it call. cudarc panics on a
/// missing one, so all are looked up before the first call.
const DRIVER_FUNCTIONS: [&str; 58] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncGetName",
    "cuFuncGetParamInfo",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphGetEdges_v2",
    "cuGraphGetNodes",
    "cuGraphInstantiateWithFlags",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphLaunch",
    "cuGraphNodeGetType",
    "cuGraphUpload",
    "cuInit",
    "cuKernelGetName",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo_v2",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Checks that libcuda can be opened and has every function that is called later.
///
/// # Errors
/// [`CudaError::DriverMissing`] or [`CudaError::DriverTooOld`].
pub fn require_driver() -> Result<()> {
    static CHECKED: OnceLock<Result<()>> = OnceLock::new();
    CHECKED
        .get_or_init(|| {
            // SAFETY: opens libcuda, whose initialisers are meant to run in any process, and closes it again.
            if !unsafe { cudarc::driver::sys::is_culib_present() } {
                return Err(CudaError::DriverMissing);
            }
            // SAFETY: libcuda is present, so that cudarc finds and opens it instead of panicking.
            let library = unsafe { cudarc::driver::sys::culib() };
            for name in DRIVER_FUNCTIONS {
                // SAFETY: the symbol is only looked up, never called through this type.
                if unsafe { library.get::<unsafe extern "C" fn()>(name) }.is_err() {
                    return Err(CudaError::DriverTooOld { missing: name });
                }
            }
            Ok(())
        })
        .clone()
}

/// The NVRTC of this process, found and opened by the first call.
///
/// # Errors
/// [`CudaError::NvrtcMissing`] with every place searched.
pub fn nvrtc() -> Result<&'static NvrtcLibrary> {
    static FOUND: OnceLock<Result<NvrtcLibrary>> = OnceLock::new();
    match FOUND.get_or_init(|| Environment::of_process().open_nvrtc()) {
        Ok(library) => Ok(library),
        Err(error) => Err(error.clone()),
    }
}

/// For tests: NVRTC, or `None` after one line on standard error that says the test is skipped.
///
/// # Panics
/// When there is no NVRTC and `HYENAC_REQUIRE_NVRTC=1`, so that continuous integration cannot skip silently.
pub fn nvrtc_for_tests() -> Option<&'static NvrtcLibrary> {
    match nvrtc() {
        Ok(library) => Some(library),
        Err(error) => {
            assert!(std::env::var_os("HYENAC_REQUIRE_NVRTC").is_none_or(|value| value != "1"), "{error}");
            // Written past the test harness, which would swallow the line of a passing test.
            let _ = writeln!(std::io::stderr(), "SKIPPED, needs NVRTC: {error}");
            None
        }
    }
}

/// What discovery looks at, so that tests can make one up.
struct Environment {
    variables: BTreeMap<&'static str, OsString>,
    working_directory: Option<PathBuf>,
    /// Where versions of CUDA are installed side by side, `/usr/local`.
    installations: PathBuf,
}

impl Environment {
    fn of_process() -> Environment {
        let names = ["HYENAC_NVRTC", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "PATH"];
        Environment {
            variables: names.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect(),
            working_directory: std::env::current_dir().ok(),
            installations: PathBuf::from("/usr/local"),
        }
    }

    /// A variable that is set and not empty.
    fn path(&self, name: &str) -> Option<PathBuf> {
        self.variables.get(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// The variable HYENAC_NVRTC when it is set, and nothing else; otherwise what the dynamic linker
    /// knows; otherwise the folders of CUDA installations and Python environments.
    fn open_nvrtc(&self) -> Result<NvrtcLibrary> {
        let mut tried = Vec::new();
        if let Some(place) = self.path("HYENAC_NVRTC") {
            let outcome = match libraries_in(&place) {
                Some((library, builtins)) => NvrtcLibrary::open(&library, builtins.as_deref()),
                None if place.exists() => Err("HYENAC_NVRTC: no libnvrtc there".to_owned()),
                None => Err("HYENAC_NVRTC: does not exist".to_owned()),
            };
            return outcome.map_err(|reason| {
                tried.push((place, reason));
                CudaError::NvrtcMissing { tried }
            });
        }
        for name in PLAIN_NAMES {
            match NvrtcLibrary::open(Path::new(name), None) {
                Ok(library) => return Ok(library),
                Err(reason) => tried.push((PathBuf::from(name), reason)),
            }
        }
        for folder in self.folders() {
            match libraries_in(&folder) {
                Some((library, builtins)) => match NvrtcLibrary::open(&library, builtins.as_deref()) {
                    Ok(library) => return Ok(library),
                    Err(reason) => tried.push((library, reason)),
                },
                None => tried.push((folder, "no libnvrtc".to_owned())),
            }
        }
        Err(CudaError::NvrtcMissing { tried })
    }

    /// Existing folders that may hold NVRTC, the most specific first.
    fn folders(&self) -> Vec<PathBuf> {
        let mut roots: Vec<PathBuf> = Vec::new();
        roots.extend(self.path("CUDA_HOME"));
        roots.extend(self.path("CUDA_PATH"));
        // The newest version last in the order of names, so the list is reversed.
        roots.extend(entries(&self.installations, "cuda").into_iter().rev());
        let mut folders: Vec<PathBuf> =
            roots.iter().flat_map(|root| TOOLKIT_FOLDERS.map(|folder| root.join(folder))).collect();

        let mut prefixes: Vec<PathBuf> = Vec::new();
        prefixes.extend(self.path("VIRTUAL_ENV"));
        if let Some(directory) = &self.working_directory {
            prefixes.extend(directory.ancestors().map(|ancestor| ancestor.join(".venv")));
        }
        if let Some(search) = self.variables.get("PATH")
            && let Some(python) = std::env::split_paths(search).map(|path| path.join("python3")).find(|p| p.is_file())
        {
            // The environment the executable appears in, then the installation that it links to.
            let resolved = python.canonicalize().ok();
            let prefix = |python: &Path| Some(python.parent()?.parent()?.to_owned());
            prefixes.extend(prefix(&python));
            prefixes.extend(resolved.as_deref().and_then(prefix));
        }
        for prefix in prefixes {
            for python in entries(&prefix.join("lib"), "python3").into_iter().rev() {
                for packages in ["site-packages", "dist-packages"] {
                    folders.extend(PACKAGE_FOLDERS.map(|folder| python.join(packages).join(folder)));
                }
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        folders.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
        folders
    }
}

/// Entries of a folder whose name begins so, sorted by name.
fn entries(folder: &Path, beginning: &str) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = listing
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning)))
        .collect();
    found.sort();
    found
}

/// NVRTC in a folder, or the file itself, with the builtins that lie beside it.
fn libraries_in(place: &Path) -> Option<(PathBuf, Option<PathBuf>)> {
    let (library, folder) = if place.is_file() {
        (place.to_owned(), place.parent()?.to_owned())
    } else {
        // The last in the order of names is the most specific version.
        (entries(place, "libnvrtc.so").pop()?, place.to_owned())
    };
    // An absolute path, because the dynamic linker searches its own folders for a bare name.
    let library = std::path::absolute(library).ok()?;
    let builtins = entries(&folder, "libnvrtc-builtins.so").pop().and_then(|path| std::path::absolute(path).ok());
    Some((library, builtins))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(root: &Path) -> Environment {
        Environment {
            variables: BTreeMap::new(),
            working_directory: Some(root.join("work/deep")),
            installations: root.join("local"),
        }
    }

    #[test]
    fn folders_come_in_order_and_only_when_they_exist() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let expected = [
            "home/lib64",
            "local/cuda-13.0/lib64",
            "local/cuda-12.4/targets/x86_64-linux/lib",
            "env/lib/python3.12/site-packages/nvidia/cu13/lib",
            "work/.venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib",
            "python/lib/python3.10/dist-packages/nvidia/cu13/lib",
        ];
        for folder in expected {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::create_dir_all(root.join("python/bin")).unwrap();
        std::fs::write(root.join("python/bin/python3"), "").unwrap();
        let mut environment = environment(root);
        environment.variables.insert("CUDA_HOME", root.join("home").into());
        environment.variables.insert("CUDA_PATH", root.join("absent").into());
        environment.variables.insert("VIRTUAL_ENV", root.join("env").into());
        let path = std::env::join_paths([root.join("absent/bin"), root.join("python/bin")]).unwrap();
        environment.variables.insert("PATH", path);
        let folders: Vec<PathBuf> = environment.folders();
        assert_eq!(folders, expected.map(|folder| root.join(folder)));
    }

    #[test]
    fn an_explicit_place_that_does_not_work_is_reported_and_nothing_else_is_tried() {
        let root = tempfile::tempdir().unwrap();
        let mut environment = environment(root.path());
        for (place, reason) in [("absent", "does not exist"), ("", "no libnvrtc there")] {
            environment.variables.insert("HYENAC_NVRTC", root.path().join(place).into());
            let Err(CudaError::NvrtcMissing { tried }) = environment.open_nvrtc() else {
                panic!("a library was found in an empty folder")
            };
            assert_eq!(tried.len(), 1);
            assert!(tried[0].1.contains(reason), "{}", tried[0].1);
        }
        let file = root.path().join("libnvrtc.so.13");
        std::fs::write(&file, "not a library").unwrap();
        environment.variables.insert("HYENAC_NVRTC", file.clone().into());
        let Err(CudaError::NvrtcMissing { tried }) = environment.open_nvrtc() else { panic!("opened a text file") };
        assert_eq!(tried[0].0, file);
    }

    #[test]
    fn builtins_are_taken_from_beside_the_library() {
        let root = tempfile::tempdir().unwrap();
        for name in
            ["libnvrtc.alt.so.13", "libnvrtc.so.13", "libnvrtc-builtins.alt.so.13.0", "libnvrtc-builtins.so.13.0"]
        {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        let expected = (root.path().join("libnvrtc.so.13"), Some(root.path().join("libnvrtc-builtins.so.13.0")));
        assert_eq!(libraries_in(root.path()), Some(expected.clone()));
        assert_eq!(libraries_in(&root.path().join("libnvrtc.so.13")), Some(expected));
    }

    #[test]
    fn nvrtc_opens_from_where_it_is_found() {
        let Some(library) = nvrtc_for_tests() else { return };
        assert!(library.version() >= (12, 0), "{:?}", library.version());
        // The explicit way opens the same file, when it is one.
        if library.path().is_absolute() {
            let mut environment = environment(Path::new("/"));
            environment.variables.insert("HYENAC_NVRTC", library.path().parent().unwrap().into());
            assert_eq!(environment.open_nvrtc().map(|library| library.version()), Ok(library.version()));
        }
    }

    #[test]
    fn a_machine_without_a_driver_gets_a_typed_error() {
        match require_driver() {
            Ok(()) | Err(CudaError::DriverMissing | CudaError::DriverTooOld { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        // SAFETY: opens and closes libcuda.
        let present = unsafe { cudarc::driver::sys::is_culib_present() };
        assert_eq!(require_driver() == Err(CudaError::DriverMissing), !present);
    }
}
