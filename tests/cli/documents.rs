//! What the documents point to exists.

use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn text(document: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(document)).unwrap()
}

/// Whether a word in backticks is meant as a path of this repository.
fn is_path(word: &str) -> bool {
    let folders = ["src/", "ir/", "passes/", "kernels/", "docs/", "bench/", "tests/", "snapshots/", ".ci/"];
    folders.iter().any(|folder| word.starts_with(folder)) && !word.contains([' ', '*', '<'])
}

#[test]
fn paths_in_the_documents_exist() {
    for document in ["README.md", "docs/ARCHITECTURE.md"] {
        let text = text(document);
        let paths: Vec<&str> = text.split('`').skip(1).step_by(2).filter(|word| is_path(word)).collect();
        assert!(!paths.is_empty());
        for path in paths {
            assert!(Path::new(ROOT).join(path).exists(), "{document} speaks of {path}, which does not exist");
        }
    }
}

#[test]
fn links_in_the_readme_lead_somewhere() {
    let text = text("README.md");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for target in targets.filter(|target| !target.contains("://")) {
        assert!(Path::new(ROOT).join(target).exists(), "README.md links to {target}, which does not exist");
    }
}

#[test]
fn environment_variables_of_the_code_are_in_the_readme() {
    let readme = text("README.md");
    let mut found = 0;
    let mut folders = vec![Path::new(ROOT).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            for word in source.split(|c: char| !(c.is_ascii_uppercase() || c == '_')) {
                // Set by the build script, not by the user.
                if word.starts_with("HYENAC_") && word.len() > "HYENAC_".len() && word != "HYENAC_SOURCE_HASH" {
                    found += 1;
                    assert!(readme.contains(word), "{word}, in {}, is not in the README", path.display());
                }
            }
        }
    }
    assert!(found > 0);
}
