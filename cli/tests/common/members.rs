//! The packages of the workspace, as its manifest lists them.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// The folders of the packages, from the root: `node`, `kernels/emulator`.
pub fn members() -> &'static [String] {
    static MEMBERS: OnceLock<Vec<String>> = OnceLock::new();
    MEMBERS.get_or_init(|| {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let members = parse(&fs::read_to_string(manifest).expect("the root has a manifest"));
        assert!(members.len() > 20, "the members were read: {members:?}");
        members
    })
}

/// The texts of the list `members`.
fn parse(manifest: &str) -> Vec<String> {
    let list = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.expect("a workspace has members");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn members_are_read_from_a_manifest() {
    let text = "[workspace]\nmembers = [\n    \"a\",\n    \"a/b\",\n]\ndefault-members = [\"c\"]\n";
    assert_eq!(parse(text), ["a", "a/b"]);
}
