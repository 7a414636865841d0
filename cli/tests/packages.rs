//! Packages of the program: what each holds, and that the program in it trains.
//!
//! A tool that is not installed is passed over with a line; `ZBELASTIC_TOOLS_REQUIRED` turns that
//! into a failure.

#[path = "common/tools.rs"]
mod tools;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tools::{content, tool};

const PROGRAM: &str = env!("CARGO_BIN_EXE_zbelastic");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn version() -> String {
    let output = content(Command::new(PROGRAM).arg("--version"));
    output.trim().strip_prefix("zbelastic ").expect("name and version").to_owned()
}

/// Runs a script of `deploy/package` on the program, and yields the file that it names.
fn packed(script: &str, folder: &Path) -> PathBuf {
    let script = root().join("deploy/package").join(script);
    let printed = content(Command::new(script).arg(PROGRAM).arg(folder));
    PathBuf::from(printed.trim())
}

/// Trains a small model with a program that was unpacked, and prints its first lines if it cannot.
fn trains(program: &Path) {
    let folder = TempDir::new().expect("a folder");
    let line = "train --set model.preset=tiny --steps 2 --workers 2 --out run";
    let printed = content(Command::new(program).current_dir(&folder).args(line.split(' ')));
    assert!(printed.contains("digest  "), "{printed}");
}

/// The files that a package has below its prefix, beside the program.
fn has_what_belongs_beside(prefix: &Path, zsh: &str) {
    let zsh = format!("share/zsh/{zsh}/_zbelastic");
    let expected = [
        "share/man/man1/zbelastic.1.gz",
        "share/man/man1/zbelastic-train.1.gz",
        "share/man/man1/zbelastic-token-create.1.gz",
        "share/bash-completion/completions/zbelastic",
        "share/fish/vendor_completions.d/zbelastic.fish",
        &zsh,
        "share/doc/zbelastic/deploy.md",
        "share/doc/zbelastic/deploy/slurm.md",
        "share/doc/zbelastic/tutorials/first-run.md",
        "share/doc/zbelastic/examples/slurm/zbelastic.sbatch",
    ];
    for name in expected {
        let size = fs::metadata(prefix.join(name)).map(|found| found.len());
        assert!(size.is_ok_and(|size| size > 0), "{name}");
    }
    let completions = prefix.join("share/bash-completion/completions/zbelastic");
    content(Command::new("bash").arg("-n").arg(completions));
}

#[test]
fn a_tarball_holds_the_program_and_what_belongs_beside_it() {
    let folder = TempDir::new().expect("a folder");
    let tarball = packed("tarball.sh", folder.path());
    let name = format!("zbelastic-{}-{}-linux", version(), env::consts::ARCH);
    assert_eq!(tarball.file_name(), Some(OsStr::new(&format!("{name}.tar.gz"))));
    let first = fs::read(&tarball).expect("it is there");
    packed("tarball.sh", folder.path());
    assert!(first == fs::read(&tarball).expect("it is there"), "made again, it has the same bytes");
    content(Command::new("tar").arg("-xzf").arg(&tarball).arg("-C").arg(folder.path()));
    let unpacked = folder.path().join(name);
    has_what_belongs_beside(&unpacked, "site-functions");
    trains(&unpacked.join("bin/zbelastic"));
}

#[test]
fn a_debian_package_holds_program_units_and_user() {
    if tool("dpkg-deb").is_none() || tool("objdump").is_none() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let package = packed("deb.sh", folder.path());
    let fields = content(Command::new("dpkg-deb").arg("--field").arg(&package));
    for field in ["Package: zbelastic", &format!("Version: {}", version()), "Depends: libc6 (>= 2."]
    {
        assert!(fields.contains(field), "{fields}");
    }
    let unpacked = folder.path().join("unpacked");
    content(Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(&unpacked));
    has_what_belongs_beside(&unpacked.join("usr"), "vendor-completions");
    for name in [
        "lib/systemd/system/zbelastic-controller.service",
        "lib/systemd/system/zbelastic-worker.service",
        "usr/lib/sysusers.d/zbelastic.conf",
        "usr/share/doc/zbelastic/copyright",
        "usr/share/doc/zbelastic/changelog.gz",
    ] {
        assert!(unpacked.join(name).is_file(), "{name}");
    }
    trains(&unpacked.join("usr/bin/zbelastic"));
    if let Some(mut shellcheck) = tool("shellcheck") {
        let scripts = ["postinst", "prerm"].map(|name| unpacked.join("DEBIAN").join(name));
        content(shellcheck.args(scripts));
    }
}

/// Writes a `cargo` into `folder` that builds nothing: where maturin has it build, it names the
/// program that is there. Crates of other systems need not be there for it.
fn write_cargo_that_has_built(folder: &Path) {
    // By its path: by its name it would be the one that is written here.
    let cargo = env!("CARGO");
    let package =
        content(Command::new(cargo).args(["pkgid", "--offline"]).current_dir(root().join("cli")));
    let artifact = serde_json::json!({
        "reason": "compiler-artifact",
        "package_id": package.trim(),
        "manifest_path": root().join("cli/Cargo.toml").canonicalize().expect("it is there"),
        "target": {
            "kind": ["bin"], "crate_types": ["bin"], "name": "zbelastic", "edition": "2024",
            "src_path": root().join("cli/src/main.rs"), "doc": true, "doctest": false, "test": true,
        },
        "profile": {
            "opt_level": "3", "debuginfo": 0, "debug_assertions": false, "overflow_checks": false,
            "test": false,
        },
        "features": [], "filenames": [PROGRAM], "executable": PROGRAM, "fresh": true,
    });
    let host = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in\n*' rustc '*) echo '{artifact}' ;;\n\
         *' metadata '*) exec '{cargo}' \"$@\" --filter-platform {host} ;;\n\
         *) exec '{cargo}' \"$@\" ;;\nesac\n"
    );
    let path = folder.join("cargo");
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

#[test]
fn a_wheel_puts_the_program_on_the_path_of_an_empty_environment() {
    let (Some(mut maturin), Some(python)) = (tool("maturin"), tool("python3")) else { return };
    let folder = TempDir::new().expect("a folder");
    write_cargo_that_has_built(folder.path());
    let path = env::var("PATH").expect("a path");
    maturin.env("PATH", format!("{}:{path}", folder.path().display())).current_dir(root());
    maturin.env("CARGO", folder.path().join("cargo"));
    content(maturin.args(["build", "--release", "--offline", "--out"]).arg(folder.path()));
    let names = fs::read_dir(&folder).expect("a folder");
    let mut wheels = names.map(|entry| entry.expect("readable").path());
    let wheel = wheels.find(|path| path.extension() == Some(OsStr::new("whl"))).expect("a wheel");
    let name = wheel.file_name().expect("a name").to_string_lossy();
    let begin = format!("zbelastic-{}-py3-none-manylinux", version());
    assert!(name.starts_with(&begin) && name.contains(env::consts::ARCH), "{name}");
    let environment = folder.path().join("environment");
    content(Command::new(python.get_program()).args(["-m", "venv"]).arg(&environment));
    let mut pip = Command::new(environment.join("bin/pip"));
    content(pip.args(["install", "--quiet", "--no-index"]).arg(&wheel));
    trains(&environment.join("bin/zbelastic"));
}
