//! How values lie in memory.
//!
//! Row-major, with one exception: rows of f16 values (their last axis) begin at multiples of 16 bytes, so that a
//! row is read and written in whole words whatever its length. What lies between the end of a row and the next is
//! undefined: anything may be written there, and no result may depend on it. Inputs, weights and outputs of a graph
//! are no f16 values; they lie as the caller gives them.
//!
//! An [`address`] is a place in memory. [`Index::flatten`] numbers the elements of a shape, as a reshape does, and is
//! no address.

use hyenac_ir::{DType, Type};

use crate::index::Index;

/// What the rows of f16 values are padded to, elements.
pub const F16_ROW: usize = 8;

/// Elements from the start of a row of `extent` elements to the start of the next.
pub fn pitch(dtype: DType, extent: usize) -> usize {
    if dtype == DType::F16 { extent.next_multiple_of(F16_ROW) } else { extent }
}

/// Elements that a value takes in memory, padding included.
pub fn elements(dtype: DType, shape: &[usize]) -> usize {
    let Some((&last, outer)) = shape.split_last() else { return 1 };
    outer.iter().fold(pitch(dtype, last), |elements, &extent| elements.saturating_mul(extent))
}

/// Bytes that a value takes in memory, padding included.
pub fn bytes(ty: &Type) -> usize {
    elements(ty.dtype, &ty.shape).saturating_mul(ty.dtype.bytes())
}

/// Where in memory the element at `index` lies, in elements.
pub fn address(dtype: DType, shape: &[usize], index: &[Index]) -> Index {
    let mut pitched = shape.to_vec();
    if let Some(last) = pitched.last_mut() {
        *last = pitch(dtype, *last);
    }
    Index::flatten(&pitched, index)
}

/// C++ that reads one element of parameter `p`, or some other where `address` lies beyond the value, as it may for the
/// positions of a group that lie beyond their row.
pub fn read_within(dtype: DType, shape: &[usize], parameter: usize, address: &Index) -> String {
    let load = load_function(dtype);
    let elements = elements(dtype, shape) as u64;
    if address.bound() <= elements {
        return format!("{load}(p{parameter} + {address})");
    }
    let last = Index::constant(elements.saturating_sub(1));
    format!("{load}(p{parameter} + ({address} < {last} ? {address} : {last}))")
}

/// The device function that reads one element.
pub fn load_function(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "load_f16",
        DType::F32 | DType::Tf32 => "load_f32",
        DType::C64 => "load_c64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_of_f16_are_padded() {
        assert_eq!([131, 136, 1].map(|extent| pitch(DType::F16, extent)), [136, 136, 8]);
        assert_eq!([DType::F32, DType::Tf32, DType::C64].map(|dtype| pitch(dtype, 131)), [131; 3]);
        assert_eq!(bytes(&Type { dtype: DType::F16, shape: vec![2, 3, 131] }), 2 * 3 * 136 * 2);
        assert_eq!(bytes(&Type { dtype: DType::F32, shape: vec![2, 3, 131] }), 2 * 3 * 131 * 4);
        assert_eq!(elements(DType::F16, &[]), 1);
    }

    #[test]
    fn an_address_counts_the_padding_and_an_index_does_not() {
        let index = [Index::variable("a", 6), Index::variable("b", 35)];
        assert_eq!(address(DType::F16, &[6, 35], &index).to_string(), "((a * 40u) + b)");
        assert_eq!(address(DType::F32, &[6, 35], &index), Index::flatten(&[6, 35], &index));
        // Rows of f16 begin at multiples of 8 elements.
        assert!(address(DType::F16, &[6, 35], &[index[0].clone(), Index::constant(0)]).is_multiple_of(8));
    }

    #[test]
    fn positions_beyond_a_value_are_read_from_within_it() {
        let time = Index::variable("strip", 5).times(8).plus(&Index::constant(7));
        let read = |dtype| read_within(dtype, &[35], 0, &time);
        assert_eq!(read(DType::F16), "load_f16(p0 + ((strip * 8u) + 7u))");
        assert_eq!(read(DType::F32), "load_f32(p0 + (((strip * 8u) + 7u) < 34u ? ((strip * 8u) + 7u) : 34u))");
    }
}
