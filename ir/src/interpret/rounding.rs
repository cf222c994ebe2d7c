//! Rounding to the narrow storage formats.

/// Rounds to the nearest binary16, ties to even, overflow to infinity.
pub fn round_to_f16(value: f64) -> f64 {
    round(value, -14, 65504.0)
}

/// Rounds to the nearest number with the exponents of binary32 and 10 bits of mantissa, ties to even.
pub fn round_to_tf32(value: f64) -> f64 {
    // (2 - 2^-10) 2^127
    round(value, -126, (2.0 - 1.0 / 1024.0) * 2f64.powi(127))
}

/// Rounds to 10 bits of mantissa with exponents of at least `least`, straight from f64, so that nothing is rounded
/// twice.
fn round(value: f64, least: i64, largest: f64) -> f64 {
    if !value.is_finite() {
        return value;
    }
    let exponent = (((value.to_bits() >> 52) & 0x7ff) as i64 - 1023).clamp(least, 1000);
    // A power of two in the normal range, so that dividing and multiplying by it are exact.
    let quantum = f64::from_bits(((exponent - 10 + 1023) as u64) << 52);
    let rounded = (value / quantum).round_ties_even() * quantum;
    if rounded.abs() > largest { f64::INFINITY.copysign(value) } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_agrees_with_the_format_on_every_value_and_midpoint() {
        for bits in 0..=u16::MAX {
            let exact = half::f16::from_bits(bits).to_f64();
            if exact.is_nan() {
                assert!(round_to_f16(exact).is_nan());
                continue;
            }
            assert_eq!(round_to_f16(exact).to_bits(), exact.to_bits());
            let next = half::f16::from_bits(bits.wrapping_add(1)).to_f64();
            if exact.is_finite() && next.is_finite() && (bits & 0x7fff) != 0x7fff {
                let midpoint = (exact + next) / 2.0;
                let even = if bits % 2 == 0 { exact } else { next };
                assert_eq!(round_to_f16(midpoint), even, "{midpoint}");
                // Just off the midpoint: a detour over f32 would lose the last bit.
                let toward_next = midpoint + (next - exact) * 1e-9;
                assert_eq!(round_to_f16(toward_next), next, "{midpoint}");
            }
        }
        assert_eq!(round_to_f16(65519.9), 65504.0);
        assert_eq!(round_to_f16(65520.0), f64::INFINITY);
        assert_eq!(round_to_f16(-1e300), f64::NEG_INFINITY);
    }

    #[test]
    fn tf32_keeps_ten_bits_of_mantissa() {
        for bits in [0x3f80_0000u32, 0x3f80_1000, 0x3f80_3000, 0x3f80_1001, 0x0000_1000, 0x0080_3000, 0xc2f6_e979] {
            let value = f32::from_bits(bits);
            let (kept, rest) = (bits & !0x1fff, bits & 0x1fff);
            let up = rest > 0x1000 || (rest == 0x1000 && kept & 0x2000 != 0);
            let expected = f32::from_bits(if up { kept + 0x2000 } else { kept });
            assert_eq!(round_to_tf32(f64::from(value)), f64::from(expected), "{bits:#x}");
        }
        assert_eq!(round_to_tf32(f64::from(f32::MAX)), f64::INFINITY);
    }
}
