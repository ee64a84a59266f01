//! What must not compile. The compiler's words change with its version and are not compared: each
//! file marks the line that it must refuse and the code of the error, `//~ E0277`, and a file without
//! a mark must compile.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// File, line, code.
type Refusals = BTreeSet<(String, u64, String)>;

#[test]
fn misuse_does_not_compile() -> Result<(), Box<dyn Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cases = package.join("tests/compile_fail");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile_fail");
    let mut manifest = format!(
        "[package]\nname = \"misuse\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\nvmm = {{ path = {package:?} }}\n"
    );
    let mut expected = Refusals::new();
    for entry in cases.read_dir()? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let name = name.ok_or("a case without a name")?;
        manifest += &format!("[[bin]]\nname = {name:?}\npath = {path:?}\n");
        for (line, text) in (1..).zip(std::fs::read_to_string(&path)?.lines()) {
            if let Some((_, code)) = text.split_once("//~ ") {
                expected.insert((name.to_owned(), line, code.to_owned()));
            }
        }
    }
    assert!(expected.len() >= 9, "cases are missing: {expected:?}");

    std::fs::create_dir_all(&place)?;
    std::fs::write(place.join("Cargo.toml"), manifest)?;
    // The same versions as here, so that nothing has to be fetched.
    let lock = package.join("../Cargo.lock");
    std::fs::copy(lock, place.join("Cargo.lock"))?;
    let output = Command::new(env!("CARGO"))
        .args([
            "check",
            "--offline",
            "--keep-going",
            "--message-format=json",
        ])
        .args(["--target-dir", "target"])
        .current_dir(&place)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut found = Refusals::new();
    let mut compiled = BTreeSet::new();
    for line in output.stdout.split(|&byte| byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        let name = message["target"]["name"].as_str().unwrap_or_default();
        if message["reason"] == "compiler-artifact" {
            compiled.insert(name.to_owned());
        }
        let error = &message["message"];
        if error["level"] != "error" || error["spans"].as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        let spans = error["spans"].as_array().into_iter().flatten();
        let line = spans
            .filter(|span| span["is_primary"] == true)
            .find_map(|span| span["line_start"].as_u64());
        let code = error["code"]["code"].as_str().unwrap_or("no code");
        found.insert((name.to_owned(), line.unwrap_or(0), code.to_owned()));
    }
    assert_eq!(found, expected, "{said}");
    assert!(compiled.contains("right_use"), "{said}");
    Ok(())
}
