//! The recipes of `deploy/`, the campaigns of `chaos-tests/` and the pages about them: every command line is one of the
//! program, and what a place has a checker for passes that.
//!
//! A checker that is not installed is passed over with a line; `ZBELASTIC_TOOLS_REQUIRED` turns
//! that into a failure, except of kubectl and SkyPilot. `ZBELASTIC_DEPLOY_TOOLS` names a folder in
//! which checkers lie beside those of the path.

#[path = "common/blocks.rs"]
mod blocks;
#[path = "common/tools.rs"]
mod tools;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blocks::blocks;
use tempfile::TempDir;
use tools::{content, find, print_skip, tool};

/// Exposure that `systemd-analyze security` may find, in tenths of ten.
const EXPOSURE_MAX: &str = "20";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files below a folder of the repository, sorted.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    paths.into_iter().flat_map(below).collect()
}

/// The recipes that end with one of these.
fn recipes(endings: &[&str]) -> Vec<PathBuf> {
    let mut files = files_below(&root().join("deploy"));
    files.retain(|path| endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)));
    assert!(!files.is_empty(), "there are recipes with {endings:?}");
    files
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of shell in a page: its blocks of `sh`, and those of tutorials that `tutorials.rs` does
/// not run.
fn shell_of_page(page: &str, is_tutorial: bool) -> String {
    let mut blocks = blocks(page);
    blocks.retain(|block| block.info == if is_tutorial { "sh elsewhere" } else { "sh" });
    blocks.into_iter().map(|block| block.text).collect()
}

/// The value that stands for a variable of the shell.
fn stand_in(variable: &str) -> &'static str {
    let is_number = ["port", "NTASKS", "PROCID"].iter().any(|part| variable.contains(part));
    if is_number { "7" } else { "n7" }
}

/// A word of the shell with its variables replaced, or nothing if it is one that may be several
/// words: a bare variable, or `"$@"`.
fn expanded(word: &str) -> Option<String> {
    let is_bare = word.starts_with('$') && !word.starts_with("${ZBELASTIC_CLUSTER}");
    if is_bare || word == "\"$@\"" {
        return None;
    }
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('$') {
        let after = after.strip_prefix('{').unwrap_or(after);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
        text = text + before + stand_in(&after[..end]);
        rest = after[end..].strip_prefix('}').unwrap_or(&after[end..]);
    }
    text += rest;
    text.retain(|c| !"\"'`".contains(c));
    Some(text)
}

/// The arguments behind the program's name, up to the end of its command.
fn arguments(words: &[&str]) -> Vec<String> {
    let mut arguments = Vec::new();
    for word in words {
        let ends = word.starts_with(['#', '&', '|', '>', '<', ';', ')']) || word.starts_with("2>");
        if ends {
            break;
        }
        let kept = word.trim_end_matches([')', ';']);
        arguments.extend(expanded(kept));
        let is_last = kept.len() < word.len() || (word.len() > 1 && word.ends_with(['\'', '`']));
        if is_last {
            break;
        }
    }
    arguments
}

/// Command lines of the program in lines of shell, YAML or units. Comments are prose as well: there a
/// word that is no command does not follow the program's name.
fn command_lines(text: &str, commands: &BTreeSet<String>) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n#", " ").replace("\\\n", " ");
    let mut found = Vec::new();
    for line in joined.lines().map(str::trim_start) {
        let flat = if line.contains(": [") {
            line.replace(['[', ']'], " ").replace(", ", " ")
        } else {
            line.into()
        };
        let words: Vec<&str> = flat.split_whitespace().collect();
        for (place, word) in words.iter().enumerate() {
            let program = word.trim_matches(['"', '\'', '`', '(', '$']);
            let is_program = ["zbelastic", "0", "/usr/bin/zbelastic"].contains(&program);
            let behind = &words[place + 1..];
            let Some(command) =
                behind.first().filter(|_| is_program || word.ends_with("=/usr/bin/zbelastic"))
            else {
                continue;
            };
            let command = command.trim_matches([',', '`', '\'']);
            let is_flag_value =
                place > 0 && words[place - 1].starts_with('-') && words[place - 1] != "--";
            let is_word = !command.is_empty() && command.chars().all(|c| c.is_ascii_lowercase());
            if !is_word || is_flag_value || (line.starts_with('#') && !commands.contains(command)) {
                continue;
            }
            found.push(arguments(behind));
        }
    }
    found
}

/// Arguments in a list of YAML with a line each, behind `args:`.
fn listed_arguments(text: &str) -> Vec<Vec<String>> {
    let lists = text.split("args:\n").skip(1);
    let items = |list: &str| -> Vec<String> {
        let lines = list.lines().map(str::trim_start);
        lines.map_while(|line| line.strip_prefix("- ")).map(str::to_owned).collect()
    };
    lists.map(items).collect()
}

/// Arguments in the files that units read their environment from.
fn arguments_of_environment(text: &str) -> Vec<Vec<String>> {
    let words = |value: &str| arguments(&value.trim_matches('"').split(' ').collect::<Vec<_>>());
    let lines = text.lines().map(|line| line.trim_start_matches('#'));
    let found = lines.filter_map(|line| {
        let worker = line
            .strip_prefix("ZBELASTIC_WORKER=")
            .map(|value| [vec!["join".to_owned()], words(value)].concat());
        worker.or_else(|| line.strip_prefix("ZBELASTIC_CONTROLLER=").map(words))
    });
    found.collect()
}

/// The program's commands, as its help lists them.
fn commands() -> BTreeSet<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_zbelastic")).arg("--help").output();
    let help = String::from_utf8(output.expect("it runs").stdout).expect("UTF-8");
    let (_, list) = help.split_once("Commands:\n").expect("a list of commands");
    let lines = list.lines().take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// What the program prints about arguments that it would not accept, or nothing: help is printed
/// only once every argument before it was parsed.
fn refusal(arguments: &[String]) -> Option<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbelastic"));
    let output = command.args(arguments).arg("--help").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then(|| format!("{arguments:?}: {text}"))
}

fn lines_of(path: &Path, commands: &BTreeSet<String>) -> Vec<Vec<String>> {
    let text = read(path);
    let ending = path.extension().and_then(|ending| ending.to_str());
    match ending {
        Some("env") => arguments_of_environment(&text),
        Some("md") => {
            let is_tutorial = path.components().any(|part| part.as_os_str() == "tutorials");
            command_lines(&shell_of_page(&text, is_tutorial), commands)
        }
        Some(_) | None => [command_lines(&text, commands), listed_arguments(&text)].concat(),
    }
}

#[test]
fn every_command_line_is_one_of_the_program() {
    let commands = commands();
    let mut paths = files_below(&root().join("deploy"));
    paths.extend(["docs/deploy.md", "docs/chaos.md"].map(|page| root().join(page)));
    paths.extend(files_below(&root().join("docs/deploy")));
    paths.extend(files_below(&root().join("docs/tutorials")));
    let mut named = BTreeSet::new();
    let mut refused = Vec::new();
    for path in paths {
        for line in lines_of(&path, &commands) {
            println!("{}: {line:?}", path.display());
            refused.extend(refusal(&line).map(|why| format!("{}: {why}", path.display())));
            named.extend(line.first().cloned());
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    for command in ["chaos", "doctor", "init", "join", "leave", "run", "status", "token"] {
        assert!(named.contains(command), "no recipe has {command}: {named:?}");
    }
}

/// A sample of all campaigns has the commands that the whole has.
#[test]
fn the_commands_of_campaigns_are_the_programs() {
    let mut campaigns = Command::new(root().join("chaos-tests/campaigns"));
    let listed = content(campaigns.args(["--list", "--scale", "0.01"]));
    let (of_the_program, others): (Vec<&str>, Vec<&str>) =
        listed.lines().partition(|line| line.contains(" zbelastic "));
    assert!(of_the_program.len() > 10, "{listed}");
    for line in command_lines(&of_the_program.join("\n"), &commands()) {
        assert_eq!(refusal(&line), None);
    }
    assert!(
        matches!(others[..], [fuzzing] if fuzzing.contains("chaos-tests/fuzz/run")),
        "{listed}"
    );
}

#[test]
fn planted_lines_are_found_and_refused() {
    let commands = BTreeSet::from(["join".to_owned(), "token".to_owned()]);
    let lines = |text| command_lines(text, &commands);
    let found = lines(
        "# `zbelastic join` is prose, zbelastic trains\nzbelastic tokn create \\\n  --uses 2 >file",
    );
    assert_eq!(
        found,
        [vec!["join".to_owned()], ["tokn", "create", "--uses", "2"].map(str::to_owned).into()]
    );
    assert!(refusal(&found[1]).is_some(), "no such command");
    let yaml = lines("command: [zbelastic, join, --cluster, \"a:7000\"]");
    assert_eq!(yaml, [["join", "--cluster", "a:7000"].map(str::to_owned)]);
    assert_eq!(refusal(&yaml[0]), None);
    let unit = lines("ExecStart=/usr/bin/zbelastic join --cluster ${ZBELASTIC_CLUSTER} $MORE");
    assert_eq!(unit, [["join", "--cluster", "n7"].map(str::to_owned)]);
    let flag = ["join", "--tokenfile", "f"].map(str::to_owned);
    assert!(refusal(&flag).is_some_and(|why| why.contains("--token-file")), "a suggestion");
}

/// Addresses in Kubernetes' files have the port that the program takes without one, over UDP.
#[test]
fn ports_are_the_programs() {
    let endings = ["kubernetes/controllers.yaml", "workers.yaml", "kubernetes/network.yaml"];
    for path in recipes(&endings) {
        let text = read(&path);
        assert!(text.contains("7000"), "{}", path.display());
        for line in text.lines().filter(|line| line.contains("ort: 70")) {
            assert!(line.contains("7000"), "{}: {line}", path.display());
        }
        let ports = text.lines().filter(|line| line.contains("ort: 7000")).count();
        assert_eq!(
            ports,
            text.matches("protocol: UDP").count() - text.matches("port: 53, protocol: UDP").count()
        );
    }
    let page = read(&root().join("docs/deploy.md"));
    assert!(page.contains("Controllers 7000"));
}

#[test]
fn units_are_sound_and_hardened() {
    let Some(mut verify) = tool("systemd-analyze") else { return };
    let folder = TempDir::new().expect("a folder");
    let units: Vec<PathBuf> = recipes(&[".service"])
        .iter()
        .map(|path| {
            let unit = folder.path().join(path.file_name().expect("a name"));
            let text = read(path).replace("/usr/bin/zbelastic", env!("CARGO_BIN_EXE_zbelastic"));
            fs::write(&unit, text).expect("written");
            unit
        })
        .collect();
    let verified = verify.args(["verify", "--man=no"]).args(&units).output().expect("it runs");
    let mut security = tool("systemd-analyze").expect("it was there");
    security.args(["security", "--offline=true"]).arg(format!("--threshold={EXPOSURE_MAX}"));
    content(security.args(&units));
    assert!(verified.status.success(), "{verified:?}");
    assert_eq!(String::from_utf8_lossy(&verified.stderr), "");
}

#[test]
fn scripts_pass_shellcheck() {
    let Some(mut shellcheck) = tool("shellcheck") else { return };
    let scripts = recipes(&[".sbatch", ".sh"]);
    let of_tests =
        ["campaigns", "rolling", "fuzz/run"].map(|name| root().join("chaos-tests").join(name));
    content(shellcheck.args(["--shell=bash"]).args(scripts).args(of_tests));
}

#[test]
fn the_containerfile_passes_hadolint() {
    let Some(mut hadolint) = tool("hadolint") else { return };
    content(hadolint.args(recipes(&["Containerfile"])));
}

#[test]
fn objects_have_the_schemas_of_kubernetes() {
    let Some(mut validate) = tool("kubernetes-validate") else { return };
    let objects =
        recipes(&["kubernetes/controllers.yaml", "workers.yaml", "network.yaml", "namespace.yaml"]);
    content(validate.arg("--strict").args(objects));
}

/// kubectl has kustomize in it. That of distributions is years old and knows no components, so nobody's script fetches
/// one: where it is not installed a line says so, whatever is required.
#[test]
fn the_base_is_built_by_kustomize() {
    let base = root().join("deploy/kubernetes");
    let Some(mut kubectl) = find("kubectl") else {
        print_skip("there is no kubectl to build the base with");
        return;
    };
    let text = content(kubectl.arg("kustomize").arg(&base));
    assert_eq!(text.matches("namespace: zbelastic").count(), 8, "{text}");
    assert!(text.contains("image: registry.example.com/zbelastic:0.1.0"), "{text}");
    assert!(!text.contains("PAGE_ADDRESS\n"), "{text}");
    // With the component that has the page.
    let copy = TempDir::new().expect("a folder");
    content(Command::new("cp").arg("-r").arg(base).arg(copy.path()));
    let base = copy.path().join("kubernetes");
    let list = read(&base.join("kustomization.yaml"));
    fs::write(base.join("kustomization.yaml"), list + "components: [page]\n").expect("writable");
    let mut kubectl = find("kubectl").expect("it was there");
    let text = content(kubectl.arg("kustomize").arg(&base));
    for part in
        ["name: zbelastic-page", "PAGE_ADDRESS\n", "containerPort: 8088", "containerPort: 7000"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// SkyPilot is large, and fetched by nobody's script: it reads the tasks where it is installed, and where it is not a
/// line says so, whatever is required.
#[test]
fn tasks_are_read_by_skypilot() {
    let python = env::var_os("ZBELASTIC_SKYPILOT_PYTHON");
    let Some(python) = python else {
        print_skip("ZBELASTIC_SKYPILOT_PYTHON names no Python with SkyPilot");
        return;
    };
    let loader = "import sys, yaml, sky\nfor path in sys.argv[1:]:\n    \
                  task = yaml.safe_load(open(path))\n    task.pop('file_mounts')\n    \
                  assert sky.Task.from_yaml_config(task).resources, path\n";
    let tasks = recipes(&["skypilot/controller.yaml", "skypilot/worker.yaml"]);
    content(Command::new(python).args(["-c", loader]).args(tasks));
}
