//! Loading libraries that are odd, old, or no driver at all.

mod common;
#[path = "common/library.rs"]
mod library;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use common::{compile, folder};
use library::{Form, Library};
use vmm_sys::{CUresult, Driver, ErrorKind, LoadError, LoadErrorKind, LoadOptions, SYMBOLS};

const FORMS: [Form; 3] = [Form::V2, Form::V1, Form::Exports];

fn load(path: &Path) -> Result<Driver, LoadError> {
    // SAFETY: the libraries of these tests have harmless initialisers, and only those of their
    // functions are called whose arguments do not matter.
    unsafe { Driver::load_from(path) }
}

fn failure(path: &Path) -> LoadError {
    load(path).expect_err("it should not load")
}

#[test]
fn a_complete_library_loads_in_every_form() {
    for form in FORMS {
        let library = Library {
            form,
            ..Library::default()
        };
        let driver = load(&library.build(&format!("complete-{form:?}"))).unwrap();
        assert_eq!(driver.version(), 13000);
        assert!(driver.symbols().all(|symbol| symbol.found), "{form:?}");
        assert!(!driver.is_emulator());
    }
}

#[test]
fn without_required_symbols_loading_fails_and_lists_them_all() {
    for form in FORMS {
        let library = Library {
            form,
            lacks: &["cuMemMap", "cuMemcpyHtoD_v2", "cuMemRetainAllocationHandle"],
            ..Library::default()
        };
        let error = failure(&library.build(&format!("required-{form:?}")));
        let expected = LoadErrorKind::MissingSymbols {
            symbols: vec!["cuMemMap", "cuMemcpyHtoD_v2"],
            driver_version: 13000,
        };
        assert_eq!(error.kind(), &expected, "{form:?}");
        let text = "the driver (CUDA 13.0) lacks cuMemMap, cuMemcpyHtoD_v2: reinstall or update it";
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn without_an_optional_symbol_only_its_call_fails() {
    for form in FORMS {
        let library = Library {
            form,
            lacks: &["cuMemRetainAllocationHandle"],
            ..Library::default()
        };
        let driver = load(&library.build(&format!("optional-{form:?}"))).unwrap();
        let missing: Vec<_> = driver.symbols().filter(|symbol| !symbol.found).collect();
        assert_eq!(missing.len(), 1);
        assert_eq!(
            missing[0].why_not().unwrap(),
            "the driver implements CUDA 13.0 but does not offer it"
        );
        // SAFETY: nothing is called.
        let error = unsafe { driver.cuMemRetainAllocationHandle(&mut 0, std::ptr::null_mut()) };
        let error = error.unwrap_err();
        assert_eq!(error.symbol(), "cuMemRetainAllocationHandle");
        assert_eq!(error.code(), None);
        assert_eq!(
            error.kind(),
            ErrorKind::Missing {
                since: 11000,
                driver_version: 13000
            }
        );
        assert_eq!(
            error.to_string(),
            "the driver has no cuMemRetainAllocationHandle, which came with CUDA 11.0: \
             it implements 13.0"
        );
    }
}

#[test]
fn an_absent_file_and_one_that_is_no_library_are_not_found() {
    let folder = folder("no-library");
    let (absent, text) = (folder.join("absent.so"), folder.join("libcuda.so.1"));
    fs::write(&text, "not a library\n").unwrap();
    for path in [absent, text] {
        let error = failure(&path);
        let expected = LoadErrorKind::LibraryNotFound {
            paths: vec![path.clone()],
        };
        assert_eq!(error.kind(), &expected);
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    let error = failure(&folder.join("absent.so")).to_string();
    assert!(error.contains("No such file or directory"), "{error}");
}

#[test]
fn a_library_of_something_else_is_no_driver() {
    let path = compile("something-else", "int something(void) { return 0; }\n");
    let error = failure(&path);
    assert_eq!(
        error.kind(),
        &LoadErrorKind::NotADriver { path: path.clone() }
    );
    assert_eq!(
        error.to_string(),
        format!(
            "{} is no CUDA driver; name the driver's libcuda.so.1, or unset VMM_LIBCUDA",
            path.display()
        )
    );
}

#[test]
fn a_library_that_answers_34_is_the_stub() {
    for form in FORMS {
        let library = Library {
            form,
            code: 34,
            ..Library::default()
        };
        let error = failure(&library.build(&format!("stub-{form:?}")));
        assert_eq!(error.kind(), &LoadErrorKind::Stub, "{form:?}");
        assert!(
            error.to_string().contains("(CUDA_ERROR_STUB_LIBRARY, 34)"),
            "{error}"
        );
    }
}

#[test]
fn a_driver_below_10_2_is_too_old() {
    for form in FORMS {
        let library = Library {
            form,
            version: 10010,
            ..Library::default()
        };
        let error = failure(&library.build(&format!("too-old-{form:?}")));
        let expected = LoadErrorKind::TooOld {
            found: 10010,
            needed: 10020,
        };
        assert_eq!(error.kind(), &expected, "{form:?}");
        assert!(
            error.to_string().contains("CUDA 10.1, and 10.2 or newer"),
            "{error}"
        );
    }
}

#[test]
fn a_refused_tag_is_named() {
    let library = Library {
        refuses: "cuMemMap",
        ..Library::default()
    };
    let error = failure(&library.build("refused"));
    let expected = LoadErrorKind::TagRefused {
        symbol: "cuMemMap",
        tag: 10020,
        code: CUresult::CUDA_ERROR_INVALID_VALUE,
    };
    assert_eq!(error.kind(), &expected);
    assert!(
        error.to_string().contains("cuMemMap for CUDA 10.2"),
        "{error}"
    );
}

#[test]
fn an_older_driver_has_what_came_with_it_or_before() {
    for (form, version) in [(Form::V1, 11030), (Form::Exports, 10020)] {
        let library = Library {
            form,
            version,
            ..Library::default()
        };
        let driver = load(&library.build(&format!("older-{version}"))).unwrap();
        assert_eq!(driver.version(), version);
        for resolved in driver.symbols() {
            let expected = resolved.symbol.tag as i32 <= version;
            assert_eq!(resolved.found, expected, "{resolved:?}");
            assert_eq!(resolved.why_not().is_none(), expected);
        }
        assert!(driver.symbols().any(|symbol| !symbol.found));
    }
}

#[test]
fn per_thread_forms_are_taken_only_when_chosen() {
    for form in FORMS {
        let path = Library {
            form,
            ..Library::default()
        }
        .build(&format!("streams-{form:?}"));
        for (per_thread, expected) in [(false, CUresult(1)), (true, CUresult(2))] {
            let options = LoadOptions::new().per_thread_default_stream(per_thread);
            // SAFETY: as in `load`.
            let driver = unsafe { options.load_from(&path) }.unwrap();
            // SAFETY: the library's function reads nothing.
            let answer = unsafe { driver.cuMemcpyHtoD(0, std::ptr::null(), 0) };
            assert_eq!(answer.unwrap_err().code(), Some(expected), "{form:?}");
        }
    }
}

#[test]
fn load_takes_what_the_variable_names() {
    const TEST: &str = "load_takes_what_the_variable_names";
    if env::var_os("VMM_SYS_CHILD").is_some() {
        assert_eq!(Driver::load().unwrap().version(), 12340);
        return;
    }
    let path: PathBuf = Library {
        version: 12340,
        ..Library::default()
    }
    .build("variable");
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", TEST])
        .env("VMM_SYS_CHILD", "1")
        .env("VMM_LIBCUDA", path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
fn every_exported_name_is_asked_for_once() {
    let mut names: Vec<_> = SYMBOLS.iter().map(|symbol| symbol.export).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), SYMBOLS.len());
}
