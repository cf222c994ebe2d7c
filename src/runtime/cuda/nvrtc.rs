//! Compiles kernels with NVRTC to machine code, and reads from its log what they use.

use std::ffi::CString;

use hyenac_kernels::KernelSource;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::discovery;
use super::error::{CompileFailure, CudaError, Result};
use super::nvrtc_library::{Failed, NvrtcLibrary, NvrtcProgram};

/// Architectures that kernels are compiled for: compute capability 8.0 and newer.
pub const KNOWN_ARCHITECTURES: [&str; 16] = [
    "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103", "sm_103a", "sm_110",
    "sm_110a", "sm_120", "sm_120a", "sm_121", "sm_121a",
];

/// Lines of the compiler's log that an error keeps.
const LOG_EXCERPT_LINES: usize = 24;

/// What a kernel takes of a multiprocessor, from the assembler's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes a thread writes to local memory for want of registers.
    pub spill_store_bytes: u32,
    /// Bytes a thread reads back.
    pub spill_load_bytes: u32,
    /// Stack of a thread, bytes.
    pub stack_bytes: u32,
    /// Shared memory of a block that the source declares with a size, bytes.
    pub static_shared_bytes: u32,
}

/// A kernel as machine code for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledKernel {
    /// Name of the function.
    pub name: String,
    /// The architecture.
    pub arch: String,
    /// Machine code, an ELF image.
    pub cubin: Vec<u8>,
    /// The intermediate text that the machine code was assembled from.
    pub ptx: String,
    /// What it uses.
    pub resources: Resources,
    /// The compiler's log, without its timings.
    pub log: String,
}

/// The options every kernel is compiled with; part of every cache key.
pub fn options(arch: &str) -> [String; 4] {
    [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        "--ptxas-options=-v".to_owned(),
        "-default-device".to_owned(),
    ]
}

/// Refuses an architecture that kernels are not compiled for.
///
/// # Errors
/// [`CudaError::UnknownArch`].
pub fn check_architecture(arch: &str) -> Result<()> {
    if KNOWN_ARCHITECTURES.contains(&arch) { Ok(()) } else { Err(unknown(arch)) }
}

fn unknown(arch: &str) -> CudaError {
    CudaError::UnknownArch { arch: arch.to_owned(), known: KNOWN_ARCHITECTURES.to_vec() }
}

/// Compiles one kernel for one architecture. Needs NVRTC, but no device.
///
/// # Errors
/// [`CudaError::NvrtcMissing`], [`CudaError::UnknownArch`], or [`CudaError::Compile`] with the line in the source.
pub fn compile(kernel: &KernelSource, arch: &str) -> Result<CompiledKernel> {
    check_architecture(arch)?;
    compile_with(discovery::nvrtc()?, kernel, arch)
}

/// Compiles kernels in parallel, in the order given, through the cache on disk.
///
/// # Errors
/// As [`compile`]; of several failures the first in the order of `kernels`.
pub fn compile_all(kernels: &[KernelSource], arch: &str, cache: &Cache) -> Result<Vec<CompiledKernel>> {
    check_architecture(arch)?;
    let results: Vec<Result<CompiledKernel>> =
        kernels.par_iter().map(|kernel| cache.compiled_kernel(kernel, arch)).collect();
    results.into_iter().collect()
}

/// [`compile`] with a library and an architecture that have been checked.
///
/// NVRTC allows separate programs to be compiled by several threads at once.
pub(super) fn compile_with(library: &NvrtcLibrary, kernel: &KernelSource, arch: &str) -> Result<CompiledKernel> {
    let nvrtc_error = |failed: Failed| CudaError::Nvrtc {
        kernel: kernel.name.clone(),
        call: failed.call,
        code: failed.code,
        description: library.describe(failed.code),
    };
    let without_null = |text: String, what: &str| {
        CString::new(text).map_err(|_| CudaError::InvalidPlan {
            what: format!("the {what} of kernel {} contains a null byte", kernel.name.escape_default()),
        })
    };
    let source = without_null(kernel.source.clone(), "source")?;
    let file_name = without_null(format!("{}.cu", kernel.name), "name")?;
    let options = options(arch).map(|option| without_null(option, "options"));
    let options = options.into_iter().collect::<Result<Vec<CString>>>()?;
    let program = library.program(&source, &file_name).map_err(nvrtc_error)?;
    match program.compile(&options) {
        Ok(()) => {}
        Err(failed) if failed.code == Failed::COMPILATION => {
            return Err(compile_error(kernel, arch, &program.log().map_err(nvrtc_error)?));
        }
        // The other options are fixed, so it is this NVRTC that does not know the architecture.
        Err(failed) if failed.code == Failed::INVALID_OPTION => return Err(unknown(arch)),
        Err(failed) => return Err(nvrtc_error(failed)),
    }
    finish(&program, kernel, arch).map_err(nvrtc_error)
}

fn finish(program: &NvrtcProgram<'_>, kernel: &KernelSource, arch: &str) -> Result<CompiledKernel, Failed> {
    let log = without_timings(&program.log()?);
    Ok(CompiledKernel {
        name: kernel.name.clone(),
        arch: arch.to_owned(),
        cubin: program.cubin()?,
        ptx: program.ptx()?,
        resources: resources(&log, &kernel.name),
        log,
    })
}

/// The log without the lines that differ from one compilation to the next.
fn without_timings(log: &str) -> String {
    log.lines().filter(|line| !line.contains("Compile time =")).map(|line| format!("{line}\n")).collect()
}

/// Reads the report of `--ptxas-options=-v` about one entry function; what is absent is 0.
fn resources(log: &str, kernel: &str) -> Resources {
    let mut resources = Resources::default();
    let entry = format!("Compiling entry function '{kernel}' ");
    let properties = format!("Function properties for {kernel}");
    let report = log
        .lines()
        .skip_while(|line| !line.contains(&entry))
        .skip(1)
        .take_while(|line| !line.contains("Compiling entry function"));
    let mut of_entry = false;
    for line in report {
        if line.contains("Function properties for ") {
            // Functions that were not inlined are reported too, each with a frame of its own.
            of_entry = line.trim_end().ends_with(&properties);
        } else if line.contains("bytes stack frame") && of_entry {
            resources.stack_bytes = number_before(line, "bytes stack frame");
            resources.spill_store_bytes = number_before(line, "bytes spill stores");
            resources.spill_load_bytes = number_before(line, "bytes spill loads");
        } else if line.contains("Used ") {
            resources.registers = number_before(line, "registers");
            resources.static_shared_bytes = number_before(line, "bytes smem");
        }
    }
    resources
}

/// The number that stands before a phrase, as in `32 registers`; 0 when there is none.
fn number_before(line: &str, phrase: &str) -> u32 {
    let Some((before, _)) = line.split_once(phrase) else { return 0 };
    before.split_whitespace().next_back().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The first error of a log, as `k.cu(3): error: ...` by the front end or without a line by the assembler.
fn compile_error(kernel: &KernelSource, arch: &str, log: &str) -> CudaError {
    let prefix = format!("{}.cu(", kernel.name);
    let front_end = log.lines().find_map(|line| {
        let (number, rest) = line.strip_prefix(&prefix)?.split_once("): ")?;
        let (kind, message) = rest.split_once(": ")?;
        // `error`, `catastrophic error` or `error #20`.
        if !kind.contains("error") {
            return None;
        }
        Some((number.parse::<u32>().ok()?, message.trim().to_owned()))
    });
    let (line, message) = match front_end {
        Some((line, message)) => (Some(line), message),
        None => {
            let first = log.lines().find(|line| line.contains("error")).or_else(|| log.lines().next());
            (None, first.unwrap_or("the compiler gave no reason").trim().to_owned())
        }
    };
    let source_line = line
        .and_then(|line| kernel.source.lines().nth((line as usize).saturating_sub(1)))
        .map(|text| text.trim().to_owned())
        .unwrap_or_default();
    CudaError::Compile(Box::new(CompileFailure {
        kernel: kernel.name.clone(),
        arch: arch.to_owned(),
        line,
        message,
        source_line,
        log: log.lines().take(LOG_EXCERPT_LINES).collect::<Vec<_>>().join("\n"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, body: &str) -> KernelSource {
        KernelSource {
            name: name.to_owned(),
            source: format!("extern \"C\" __global__ void {name}(float* a, const float* b) {{\n{body}\n}}\n"),
        }
    }

    const SHARED: &str = "__shared__ float s[64];\nint i = threadIdx.x;\ns[i % 64] = b[i];\n__syncthreads();\n\
                          a[i] = s[63 - i];";
    const SPILLING: &str = "float t[60];\n#pragma unroll\nfor (int i = 0; i < 60; i++) t[i] = b[i * threadIdx.x];\n\
                            __syncthreads();\n#pragma unroll\n\
                            for (int i = 0; i < 60; i++) a[i * threadIdx.x] = t[i] * t[59 - i];";

    #[test]
    fn small_kernels_compile_for_every_known_architecture() {
        let Some(library) = discovery::nvrtc_for_tests() else { return };
        let shared = kernel("shared", SHARED);
        for arch in KNOWN_ARCHITECTURES {
            let compiled = match compile(&shared, arch) {
                Ok(compiled) => compiled,
                // An older NVRTC does not know the newest architectures.
                Err(CudaError::UnknownArch { .. }) if library.version() < (13, 0) => continue,
                Err(error) => panic!("{arch}: {error}"),
            };
            assert_eq!(&compiled.cubin[..4], b"\x7fELF", "{arch}");
            assert!(compiled.ptx.contains(".visible .entry shared("), "{arch}");
            let resources = compiled.resources;
            assert_eq!(resources.static_shared_bytes, 256, "{arch}: {}", compiled.log);
            assert!((1..=255).contains(&resources.registers), "{arch}: {}", compiled.log);
            assert_eq!((resources.spill_store_bytes, resources.spill_load_bytes), (0, 0), "{arch}");
        }
    }

    #[test]
    fn spills_are_read_from_the_log() {
        let Some(_) = discovery::nvrtc_for_tests() else { return };
        let mut spilling = kernel("spilling", SPILLING);
        spilling.source = spilling.source.replace("void", "void __launch_bounds__(1024, 2)");
        for arch in ["sm_80", "sm_90a", "sm_100"] {
            let resources = compile(&spilling, arch).unwrap().resources;
            assert_eq!(resources.registers, 32, "{arch}");
            assert!(resources.spill_store_bytes > 0 && resources.spill_load_bytes > 0, "{arch}: {resources:?}");
            assert!(resources.stack_bytes >= resources.spill_store_bytes / 2, "{arch}: {resources:?}");
        }
    }

    #[test]
    fn a_report_about_several_functions_is_read_for_the_one_asked_for() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Compiling entry function 'other' for 'sm_80'\n\
                   ptxas info    : Function properties for other\n\
                   ptxas         .     88 bytes stack frame, 120 bytes spill stores, 152 bytes spill loads\n\
                   ptxas info    : Used 32 registers, used 1 barriers, 88 bytes cumulative stack size, 368 bytes cmem[0]\n\
                   ptxas info    : Compiling entry function 'mine' for 'sm_80'\n\
                   ptxas info    : Function properties for helper\n\
                   ptxas         .     16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n\
                   ptxas info    : Function properties for mine\n\
                   ptxas         .     400 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 40 registers, used 1 barriers, 256 bytes smem, 368 bytes cmem[0]\n";
        let expected = Resources {
            registers: 40,
            spill_store_bytes: 8,
            spill_load_bytes: 12,
            stack_bytes: 400,
            static_shared_bytes: 256,
        };
        assert_eq!(resources(log, "mine"), expected);
        assert_eq!(resources(log, "absent"), Resources::default());
    }

    #[test]
    fn the_first_error_comes_with_its_line() {
        let Some(_) = discovery::nvrtc_for_tests() else { return };
        let failure = |kernel: &KernelSource, arch: &str| match compile(kernel, arch) {
            Err(CudaError::Compile(failure)) => failure,
            other => panic!("{other:?}"),
        };
        let failed = failure(&kernel("wrong", "int unused;\na[0] = foo;\nint x = ;"), "sm_90a");
        assert_eq!((failed.kernel.as_str(), failed.line), ("wrong", Some(3)));
        assert_eq!(failed.message, "identifier \"foo\" is undefined");
        assert_eq!(failed.source_line, "a[0] = foo;");
        assert!(failed.log.contains("wrong.cu(4): error"), "{}", failed.log);

        // The assembler knows lines of the PTX only, so no line of the source is claimed.
        let failed = failure(&kernel("assembly", "asm(\"bogus.op;\");"), "sm_80");
        assert_eq!(failed.line, None);
        assert!(failed.message.contains("ptxas"), "{}", failed.message);
    }

    #[test]
    fn unknown_architectures_and_null_bytes_are_refused() {
        for arch in ["sm_70", "sm_90b", "compute_90", "sm_80 --use_fast_math", ""] {
            assert!(matches!(check_architecture(arch), Err(CudaError::UnknownArch { .. })), "{arch}");
        }
        let Some(_) = discovery::nvrtc_for_tests() else { return };
        let null = KernelSource { name: "null".to_owned(), source: "int\0x;".to_owned() };
        assert!(matches!(compile(&null, "sm_80"), Err(CudaError::InvalidPlan { .. })));
    }

    #[test]
    fn compiling_in_parallel_gives_what_compiling_alone_gives() {
        let Some(_) = discovery::nvrtc_for_tests() else { return };
        let kernels: Vec<KernelSource> = (0..12)
            .map(|index| kernel(&format!("k{index}"), &format!("a[threadIdx.x] = b[{index}] * {index}.5f;")))
            .collect();
        let parallel = compile_all(&kernels, "sm_90a", &Cache::disabled()).unwrap();
        for (kernel, compiled) in kernels.iter().zip(&parallel) {
            assert_eq!(compile(kernel, "sm_90a").as_ref(), Ok(compiled));
        }
        let mut wrong = kernels;
        wrong[3].source = "first".to_owned();
        wrong[7].source = "second".to_owned();
        let error = compile_all(&wrong, "sm_90a", &Cache::disabled()).unwrap_err();
        assert!(matches!(&error, CudaError::Compile(failure) if failure.kernel == "k3"), "{error}");
    }
}
