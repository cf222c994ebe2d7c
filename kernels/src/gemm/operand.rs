//! How the elements of an operand get into shared memory: the emitted structs `left` and `right`.

use std::fmt::Write;

use hyenac_ir::{DType, Graph, Op, Value};

use super::recognise::{Product, affinity};
use crate::family::Refusal;
use crate::index::Index;
use crate::layer_norm::Norm;
use crate::scalar::{Memory, literal};
use crate::vector::{Group, Lanes};

/// Defines the variable of a group along the inner dimension.
const K_GROUP: &str = "const uint32 k_group = k / width;";

/// The code of one operand.
pub struct Operand {
    /// Whether groups run along the inner dimension; otherwise along rows.
    pub along_inner: bool,
    /// Elements of a group.
    pub width: usize,
    /// Whether memory holds the operand format already.
    pub direct: bool,
    /// Whether a group is one load of 16 bytes that hold the operand format already.
    pub plain: bool,
    /// Whether elements are rounded to tf32 when they are stored.
    pub round: bool,
    /// Bytes read from memory for one element.
    pub source_bytes: f64,
    /// What is loaded and computed; before the norm if there is one.
    pub group: Group,
    /// What is computed behind the norm.
    after: Option<Group>,
    eps: f64,
    /// Statements that define the variables of indices.
    setup: String,
}

/// The value to evaluate for an operand, and whether it is to be rounded to tf32: a cast to the operand format is
/// left to the store into shared memory.
fn root(body: &Graph, value: Value, precision: DType) -> (Value, bool) {
    match body.op(value) {
        Op::Cast { dtype } if *dtype == precision && precision != DType::F32 => {
            (body.operand(value.node, 0), precision == DType::Tf32)
        }
        _ => (value, false),
    }
}

fn widest_group(extent: usize, element_bytes: usize) -> usize {
    let fits = |&width: &usize| extent.is_multiple_of(width) && width * element_bytes <= 16;
    if element_bytes == 0 { 1 } else { [8, 4, 2].into_iter().find(fits).unwrap_or(1) }
}

/// Emits groups along an index of `extent`, narrower until the expression fits.
fn groups(
    body: &Graph,
    root: Value,
    width: usize,
    ragged: bool,
    lane: impl Fn(usize) -> Index,
    index: impl Fn(Index) -> Vec<Index>,
) -> Result<Group, Refusal> {
    let (roots, provided) = (vec![root], Vec::new());
    let lanes = Lanes { body, lane: lane(width), ragged, width, reader: &Memory, roots, provided, indent: 2 };
    lanes.emit(|emitter, lane| emitter.element(root, &index(lanes.index(lane))))
}

impl Operand {
    /// The left operand.
    pub fn left(body: &Graph, product: &Product) -> Result<Operand, Refusal> {
        let (root, round) = root(body, product.x, product.precision);
        if let Some(norm) = &product.norm {
            return Operand::normalised(body, product, norm, root, round);
        }
        let (k, t) = (Index::variable("k", product.inner), product.row_lane(1));
        let mut index = product.lane_leading(t.clone());
        index.push(k.clone());
        let affinity = affinity(body, &k, &t, &Memory, |emitter| emitter.element(root, &index).map(|_| ()))?;
        if affinity.first >= affinity.second {
            let width = widest_group(product.inner, affinity.widest);
            let group = groups(
                body,
                root,
                width,
                false,
                |width| Norm::lane(product.inner, width),
                |k| {
                    let mut index = product.flat_leading();
                    index.push(k);
                    index
                },
            )?;
            let setup = format!("{}{K_GROUP}", product.row_setup());
            return Ok(Operand::new(product, true, width, round, group, setup));
        }
        let width = widest_group(product.pitch, affinity.widest);
        let group = groups(
            body,
            root,
            width,
            product.ragged().is_some(),
            |width| product.row_lane(width),
            |t| {
                let mut index = product.lane_leading(t);
                index.push(k.clone());
                index
            },
        )?;
        Ok(Operand::new(product, false, width, round, group, product.group_setup()))
    }

    /// The right operand, whose rows are the product's columns.
    pub fn right(body: &Graph, product: &Product) -> Result<Operand, Refusal> {
        let (root, round) = root(body, product.weight, product.precision);
        let (k, n) = (Index::variable("k", product.inner), Index::variable("row", product.columns));
        let affinity =
            affinity(body, &k, &k, &Memory, |emitter| emitter.element(root, &[n.clone(), k.clone()]).map(|_| ()))?;
        let width = widest_group(product.inner, affinity.widest);
        let group = groups(body, root, width, false, |width| Norm::lane(product.inner, width), |k| vec![n.clone(), k])?;
        Ok(Operand::new(product, true, width, round, group, K_GROUP.to_owned()))
    }

    fn new(product: &Product, along_inner: bool, width: usize, round: bool, group: Group, setup: String) -> Operand {
        let stored = match product.precision {
            DType::F16 => &[DType::F16][..],
            DType::Tf32 => &[DType::Tf32],
            _ => &[DType::F32, DType::Tf32],
        };
        // Copies in the background move 4 bytes or more.
        let wide = group.loads.iter().all(|load| load.bytes >= 4);
        let direct = !round && wide && stored.iter().any(|&dtype| group.is_copy_of(dtype));
        let plain = direct && group.loads.iter().all(|load| load.bytes == 16);
        let loaded: usize = group.loads.iter().map(|load| load.bytes).sum();
        let source_bytes = if loaded > 0 { loaded as f64 / width as f64 } else { 4.0 };
        Operand { along_inner, width, direct, plain, round, source_bytes, group, after: None, eps: 0.0, setup }
    }

    fn normalised(body: &Graph, product: &Product, norm: &Norm, root: Value, round: bool) -> Result<Operand, Refusal> {
        let width = norm.width();
        let before = norm.before(body, width)?;
        let after = norm.after(body, root, width, |emitter, k| {
            let mut index = product.flat_leading();
            index.push(k);
            emitter.element(root, &index)
        })?;
        let setup = format!("{}{K_GROUP}", product.row_setup());
        let mut operand = Operand::new(product, true, width, round, before, setup);
        operand.direct = false;
        operand.after = Some(after);
        operand.eps = norm.eps;
        Ok(operand)
    }

    /// Whether loads are too narrow to run in the background.
    pub fn is_narrow(&self) -> bool {
        self.group.loads.iter().any(|load| load.bytes < 4)
    }

    /// Whether rows are normalised on the way.
    pub fn is_normalised(&self) -> bool {
        self.after.is_some()
    }

    /// The struct, with these members.
    pub fn emit(&self, name: &str, members: &str) -> String {
        let (width, words) = (self.width, self.group.words);
        let mut text = String::new();
        let _ = writeln!(text, "struct {name} {{\n    {members};");
        let _ = writeln!(text, "    static constexpr int width = {width}, words = {words};");
        let _ = writeln!(
            text,
            "    static constexpr bool along_inner = {}, direct = {}, round = {}, normalised = {};",
            self.along_inner,
            self.direct,
            self.round,
            self.is_normalised()
        );
        let raw = words.max(1);
        let function = |text: &mut String, signature: &str, body: &str| {
            let _ = write!(
                text,
                "    __device__ __forceinline__ void {signature} const {{\n        {}\n{body}    }}\n",
                self.setup
            );
        };
        if self.direct {
            let copies = self.copies(|load, bytes| {
                format!("copy_async<{bytes}>(target, p{} + (valid ? {} : 0u), valid);", load.parameter, load.address)
            });
            function(&mut text, "copy(uint32 target, uint32 row, uint32 k, bool valid)", &copies);
            text.push_str("};\n\n");
            return text;
        }
        let fetch = self.group.fetch(2);
        function(&mut text, &format!("fetch(uint32 (&raw)[{raw}], uint32 row, uint32 k)"), &fetch);
        if let Some(after) = &self.after {
            let _ = writeln!(text, "    static constexpr float eps = {};", literal(self.eps));
            let before = self.group.assign("x", 2);
            let signature = format!("before(const uint32 (&raw)[{raw}], uint32 row, uint32 k, float (&x)[width])");
            function(&mut text, &signature, &before);
            let (of_columns, of_rows) = after.fetch_by_row(2);
            let raw = after.words.max(1);
            let _ = writeln!(text, "    static constexpr int norm_words = {raw};");
            let _ = write!(
                text,
                "    __device__ __forceinline__ void fetch_columns(uint32 (&raw)[{raw}], uint32 k) const {{\n        \
                 {K_GROUP}\n{of_columns}    }}\n"
            );
            let signature = format!(
                "after(uint32 (&raw)[{raw}], uint32 row, uint32 k, const float (&x)[width], float mean, float scale, \
                 float (&value)[width])"
            );
            function(&mut text, &signature, &format!("{of_rows}{}", after.assign("value", 2)));
            text.push_str("};\n\n");
            return text;
        }
        let values = self.group.assign("value", 2);
        let signature = format!("values(const uint32 (&raw)[{raw}], uint32 row, uint32 k, float (&value)[width])");
        function(&mut text, &signature, &values);
        // Words land thread after thread, load after load.
        let copies = self.copies(|load, bytes| {
            format!(
                "land<{}>(landing + {} * THREADS + threadIdx.x * {bytes}, p{} + (valid ? {} : 0u), valid);",
                load.bytes,
                4 * load.word,
                load.parameter,
                load.address
            )
        });
        text.push_str("    template <int THREADS>\n");
        function(&mut text, "fetch_async(uint32 landing, uint32 row, uint32 k, bool valid)", &copies);
        let landed = self.copies(|load, bytes| {
            format!(
                "load_shared_words<{}, {}>(raw, landing + {} * THREADS + threadIdx.x * {bytes});",
                load.word,
                load.words(),
                4 * load.word
            )
        });
        let _ = write!(
            text,
            "    template <int THREADS>\n    \
             __device__ __forceinline__ void landed(uint32 (&raw)[{raw}], uint32 landing) const {{\n{landed}    }}\n}};\n\n"
        );
        text
    }

    fn copies(&self, statement: impl Fn(&crate::vector::Load, usize) -> String) -> String {
        self.group.loads.iter().map(|load| format!("        {}\n", statement(load, 4 * load.words()))).collect()
    }
}
