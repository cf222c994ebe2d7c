//! Patterns of rule names.

/// Whether a name matches a pattern in which `*` stands for any characters and `?` for one.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last star does not fit: one character later.
    let mut retry = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match retry {
                Some((after_star, start)) => {
                    retry = Some((after_star, start + 1));
                    p = after_star;
                    n = start + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, expected) in [
            ("fuse-*", "fuse-linear-x", true),
            ("*f16*", "store-gate-f16", true),
            ("fuse-?dd-a", "fuse-add-a", true),
            ("*-a-*-b", "x-a-a-y-b", true),
            ("fuse", "fuse-add", false),
            ("*-b", "fuse-add-a", false),
            ("", "", true),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
