//! From a block's configuration to a graph of regions and a plan.

mod options;
mod stored;
mod tuning;

use std::path::Path;

use hyenac_ir::{BlockConfig, Graph};
use hyenac_kernels::Plan;
use hyenac_passes::{Options, Report, RuleSet, optimize};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Stage};
use crate::runtime::cuda::Cache;
use crate::target::Machine;

pub use options::{CompileOptions, RuleFile};
pub use tuning::{TuningChoice, TuningFile};

/// A block compiled for one batch size and sequence length, with every stage on the way.
///
/// It holds no weights: plans never depend on their values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compilation {
    /// The block.
    pub config: BlockConfig,
    /// How it was compiled.
    pub options: CompileOptions,
    /// What prices depended on.
    pub fingerprint: String,
    /// The block in elementary ops.
    #[serde(with = "stored::graph")]
    pub reference: Graph,
    /// The graph of regions that was chosen.
    #[serde(with = "stored::graph")]
    pub optimized: Graph,
    /// What fired, what was chosen and why.
    pub report: Report,
    /// The kernels; none for the CPU, which evaluates the graph of regions itself.
    pub plan: Option<Plan>,
}

impl Compilation {
    /// Everything as JSON.
    ///
    /// # Errors
    /// When a number has no JSON form.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }

    /// A compilation from its JSON, verified.
    ///
    /// # Errors
    /// When the text is not that of a compilation, or one of its graphs is invalid.
    pub fn from_json(text: &str) -> Result<Compilation, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// Compiles a block.
///
/// # Errors
/// When the block has no meaning at this size, a rule or a tuning database does not load, or the target has no kernel
/// for an op.
pub fn compile(config: &BlockConfig, options: &CompileOptions) -> Result<Compilation, Error> {
    let reference = config.reference_graph(options.batch, options.seq_len).map_err(Error::Config)?;
    verify(&reference, Stage::Reference)?;
    let target = options.machine.target(&options.tuning)?;
    let passes = Options {
        precision: options.precision,
        fuse: options.fuse,
        frozen: options.mode == hyenac_kernels::Mode::Frozen,
        rules: rules(options)?,
        ..Options::default()
    };
    let optimized = optimize(&reference, &passes, target.as_ref())?;
    verify(&optimized.graph, Stage::Optimized)?;
    let plan = match &options.machine {
        Machine::Cpu => None,
        Machine::Gpu(device) => Some(hyenac_kernels::lower(&optimized.graph, device, options.mode)?),
    };
    Ok(Compilation {
        config: *config,
        options: options.clone(),
        fingerprint: target.fingerprint(),
        reference,
        optimized: optimized.graph,
        report: optimized.report,
        plan,
    })
}

/// Compiles a block, or takes it from the cache on disk when the same sources of hyenac have compiled it before
/// with the same rules for the same machine.
///
/// # Errors
/// As [`compile`].
pub fn compile_cached(config: &BlockConfig, options: &CompileOptions, cache: &Cache) -> Result<Compilation, Error> {
    let rules = rules(options)?.text();
    let fingerprint = options.machine.target(&options.tuning)?.fingerprint();
    let parts = serde_json::to_vec(&(config, options)).map_err(stored::unstorable)?;
    let sources = env!("HYENAC_SOURCE_HASH");
    let key = Cache::key(&[&parts, rules.as_bytes(), fingerprint.as_bytes(), sources.as_bytes()]);
    let mut fresh = None;
    let bytes = cache.get_or_put("plan", &key, || {
        let compilation = compile(config, options)?;
        let bytes = serde_json::to_vec(&compilation).map_err(stored::unstorable)?;
        fresh = Some(compilation);
        Ok::<_, Error>(bytes)
    })?;
    if let Some(compilation) = fresh {
        return Ok(compilation);
    }
    match serde_json::from_slice::<Compilation>(&bytes) {
        Ok(stored) if stored.config == *config && stored.options == *options => Ok(stored),
        // An entry with a right checksum and a wrong content: never trusted.
        _ => compile(config, options),
    }
}

/// The rules of a compilation: the built-in ones and the user's, but those left out.
///
/// # Errors
/// When a file does not load, or a pattern of `without` leaves nothing out, which is a misspelling.
pub fn rules(options: &CompileOptions) -> Result<RuleSet, Error> {
    let mut rules = RuleSet::builtin();
    for file in &options.rules {
        rules = rules.merge(RuleSet::parse(&file.name, &file.text)?)?;
    }
    for pattern in &options.without {
        let before = rules.len();
        rules = rules.without(pattern);
        if rules.len() == before {
            let why = format!("no rule's name matches `{pattern}`; `hyenac rules list` lists the names");
            return Err(Error::Usage { what: "--without".to_owned(), why });
        }
    }
    Ok(rules)
}

fn verify(graph: &Graph, stage: Stage) -> Result<(), Error> {
    graph.verify().map_err(|source| Error::Verify { stage, source })
}

impl RuleFile {
    /// Reads a file of rules.
    ///
    /// # Errors
    /// When it cannot be read as text.
    pub fn read(path: &Path) -> Result<RuleFile, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| crate::files::FileError::Io {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
        Ok(RuleFile { name: path.display().to_string(), text })
    }
}
