//! The intermediate representation of hyenac: a dataflow graph of tensors.
//!
//! A [`Graph`] holds SSA values on a `petgraph` graph. A value has a [`Type`] (dtype and shape, dense
//! and row-major) and a [`Binding`] time (known from the weights alone, or only with the input). Every
//! [`Op`] stands in one table (`op.rs`), and `docs/ir.md` states its meaning. The only fused op is a
//! [`Region`], whose body in elementary ops is its definition, so that a fused graph can always be
//! evaluated and compared with the unfused one.
//!
//! Real arithmetic happens in f32: elementwise ops, reductions and convolutions widen narrower operands
//! exactly and yield f32. Only `cast` narrows. Ops that move data keep the dtype.
//!
//! ```
//! use hyenac_ir::{Rounding, Tensor, evaluate, parse};
//!
//! let graph = parse(
//!     r#"graph {
//!       %x = input "x" : f32[2]
//!       %half = scalar {value = 0.5}
//!       %y = mul %x, %half
//!       return %y
//!     }"#,
//! )?;
//! let x = Tensor::new([2], vec![1.0, 3.0])?;
//! let y = evaluate::<f64>(&graph, &[("x".to_owned(), x)].into(), Rounding::Exact)?;
//! assert_eq!(y[0].data, [0.5, 1.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attribute;
pub mod block;
mod dot;
mod error;
mod graph;
mod infer;
pub mod interpret;
mod op;
mod region;
mod text;
mod types;
mod verify;

pub use attribute::{Attribute, AttributeValue};
pub use block::{BlockConfig, FilterLayout, Positions};
pub use error::IrError;
pub use graph::{Graph, Node, Use, Value};
pub use infer::{MAX_VALUE_BYTES, broadcast, infer};
pub use interpret::{Real, Rounding, Tensor, evaluate, evaluate_body, evaluate_op};
pub use op::{Op, Signature, TABLE};
pub use petgraph::graph::NodeIndex;
pub use region::Region;
pub use text::{ParseError, ParseProblem, parse};
pub use types::{Binding, DType, Type};
