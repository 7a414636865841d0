//! Test programs that compare with figures of other programs, which are their oracles.
//!
//! A few figures of each kind travel with a package, in its folder `vectors`; all of those in the
//! folder that `ZBELASTIC_ORACLES` names are compared as well, each case in a test of its own. A
//! case that is missing, or cannot be compared yet, is an ignored test, which the runner's last line
//! counts. With `ZBELASTIC_ORACLES_REQUIRED=1` a missing one fails.

use std::env;
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Trial};

/// The folder of all figures, unless `ZBELASTIC_ORACLES` names another: beside the repository.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/oracles");

/// Where figures are looked for, and whether they have to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oracles {
    /// The folder of all figures.
    pub folder: PathBuf,
    /// Whether a missing one is a failure.
    pub is_required: bool,
}

/// A comparison, as a test of the runner.
pub struct OracleTest {
    name: String,
    is_ignored: bool,
    compare: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

/// Figures of one kind, and how a case of them is compared.
pub struct OracleKind {
    /// Name of their folder, or of the one file that they are.
    pub name: &'static str,
    /// What is compared, behind the name in those of tests, where there are several kinds in a folder.
    pub what: &'static str,
    /// Whether some of them travel with the package.
    pub has_vectors: bool,
    /// Whether an entry of the folder is a case; others belong to the cases.
    pub is_case: fn(&Path) -> bool,
    /// Compares a case; panics where it differs.
    pub compare: fn(&Path),
    /// Why the case cannot be compared yet, in the words of a test's name.
    pub missing: fn(&Path) -> Option<&'static str>,
}

impl OracleTest {
    /// A comparison that panics where it differs.
    pub fn new(name: impl Into<String>, compare: impl FnOnce() + Send + 'static) -> Self {
        let compare = Box::new(|| {
            compare();
            Ok(())
        });
        Self { name: name.into(), is_ignored: false, compare }
    }

    fn ignored_if(self, is_ignored: bool) -> Self {
        Self { is_ignored, ..self }
    }
}

impl Oracles {
    /// As the variables `ZBELASTIC_ORACLES` and `ZBELASTIC_ORACLES_REQUIRED` say.
    #[must_use]
    pub fn from_env() -> Self {
        let folder = env::var_os("ZBELASTIC_ORACLES").map_or_else(|| FOLDER.into(), PathBuf::from);
        let required = env::var_os("ZBELASTIC_ORACLES_REQUIRED");
        Self { folder, is_required: required.is_some_and(|value| value == "1") }
    }

    /// A comparison with the text of one file of the folder.
    #[must_use]
    pub fn of_file(&self, name: &str, file: &str, compare: fn(&str)) -> OracleTest {
        let path = self.folder.join(file);
        let is_ignored = !path.exists() && !self.is_required;
        let compare = Box::new(move || {
            let text = std::fs::read_to_string(&path);
            compare(&text.map_err(|error| format!("{}: {error}", path.display()))?);
            Ok(())
        });
        OracleTest { name: format!("oracle_folder_{name}"), is_ignored, compare }
    }

    /// The cases that travel with a package, and those of the folder; or, where the folder has none,
    /// one test in their place that is ignored, or fails where they are required.
    ///
    /// # Panics
    /// If none travels with the package, where some should, or some do where none should.
    #[must_use]
    pub fn of_kind(&self, kind: &OracleKind, vectors: &Path) -> Vec<OracleTest> {
        let small = cases(kind, vectors);
        assert_eq!(!small.is_empty(), kind.has_vectors, "the package's vectors of {}", kind.name);
        let mut tests: Vec<_> = small.into_iter().map(|path| test(kind, "vectors", path)).collect();
        let found = cases(kind, &self.folder);
        if found.is_empty() {
            let missing = format!("no {} in {}", kind.name, self.folder.display());
            let name = format!("oracle_folder_{}{}", word(kind.name), kind.what);
            let compare = Box::new(|| Err(missing));
            tests.push(OracleTest { name, is_ignored: !self.is_required, compare });
        }
        tests.extend(found.into_iter().map(|path| test(kind, "folder", path)));
        tests
    }
}

/// A name as a part of a test's.
fn word(name: &str) -> String {
    name.replace('.', "_")
}

/// The cases of a kind below `folder`, or its one file. None where neither is there.
fn cases(kind: &OracleKind, folder: &Path) -> Vec<PathBuf> {
    let path = folder.join(kind.name);
    if path.is_file() {
        return vec![path];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut cases: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| (kind.is_case)(path)).collect();
    cases.sort();
    cases
}

fn test(kind: &OracleKind, origin: &str, path: PathBuf) -> OracleTest {
    let case = path.file_name().expect("a case has a name").to_string_lossy();
    let missing = (kind.missing)(&path);
    let reason = missing.map_or(String::new(), |reason| format!("_{reason}"));
    let kind_name = word(kind.name) + kind.what;
    let name = format!("oracle_{origin}_{kind_name}_{}{reason}", word(&case));
    let compare = kind.compare;
    OracleTest::new(name, move || compare(&path)).ignored_if(missing.is_some())
}

/// Runs the tests as the command line says, and ends the process.
pub fn run(tests: impl IntoIterator<Item = OracleTest>) -> ! {
    let trials = tests.into_iter().map(|OracleTest { name, is_ignored, compare }| {
        let run = || compare().map_err(Into::into);
        Trial::test(name, run).with_ignored_flag(is_ignored)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{OracleKind, OracleTest, Oracles};

    const KIND: OracleKind = OracleKind {
        name: "kind",
        what: "",
        has_vectors: true,
        is_case: |path| path.extension().is_some_and(|ending| ending == "csv"),
        compare: |path| assert_eq!(fs::read_to_string(path).expect("readable"), "right"),
        missing: |path| path.ends_with("later.csv").then_some("not_yet"),
    };

    /// Names of the tests, and of each whether it is ignored, and if not, whether it passes.
    fn outcomes(tests: Vec<OracleTest>) -> Vec<(String, Option<bool>)> {
        let outcome = |OracleTest { name, is_ignored, compare }: OracleTest| {
            let passes = || {
                let compare = std::panic::AssertUnwindSafe(compare);
                std::panic::catch_unwind(|| { compare }.0()).is_ok_and(|done| done.is_ok())
            };
            (name, (!is_ignored).then(passes))
        };
        tests.into_iter().map(outcome).collect()
    }

    fn write(folder: &Path, name: &str, text: &str) {
        fs::create_dir_all(folder.join("kind")).expect("writable");
        fs::write(folder.join("kind").join(name), text).expect("writable");
    }

    #[test]
    fn what_is_missing_is_ignored_or_fails_where_it_is_required() {
        let vectors = tempfile::tempdir().expect("a folder");
        write(vectors.path(), "a.csv", "right");
        write(vectors.path(), "README.md", "no case");
        let all = tempfile::tempdir().expect("a folder");
        for is_required in [false, true] {
            let oracles = Oracles { folder: all.path().join("nowhere"), is_required };
            let place = is_required.then_some(false);
            let expected = [
                ("oracle_vectors_kind_a_csv".to_owned(), Some(true)),
                ("oracle_folder_kind".to_owned(), place),
            ];
            assert_eq!(outcomes(oracles.of_kind(&KIND, vectors.path())), expected);
            let file = oracles.of_file("table", "table.csv", |_| {});
            assert_eq!(outcomes(vec![file]), [("oracle_folder_table".to_owned(), place)]);
        }
    }

    #[test]
    fn every_case_of_the_folder_is_a_test_of_its_own() {
        let all = tempfile::tempdir().expect("a folder");
        let cases = [("a.csv", "right"), ("b.csv", "wrong"), ("later.csv", "wrong")];
        cases.iter().for_each(|(name, text)| write(all.path(), name, text));
        let oracles = Oracles { folder: all.path().to_owned(), is_required: true };
        let mut found = outcomes(oracles.of_kind(&KIND, all.path()));
        let expected = [
            ("oracle_folder_kind_a_csv", Some(true)),
            ("oracle_folder_kind_b_csv", Some(false)),
            ("oracle_folder_kind_later_csv_not_yet", None),
        ];
        let expected = expected.map(|(name, outcome)| (name.to_owned(), outcome));
        assert_eq!(found.split_off(3), expected);
    }
}
