//! Compiles the protocol with protox, so that no `protoc` is needed on the machine, and lists the migrations.

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    compile_protocol()?;
    list_migrations()
}

fn compile_protocol() -> Result<(), Box<dyn Error>> {
    let files = [
        "fencepost/worker/v1/worker.proto",
        "fencepost/producer/v1/producer.proto",
    ];
    println!("cargo:rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true);
    compiler.include_imports(true);
    compiler.open_files(files)?;
    let descriptors = compiler.file_descriptor_set();
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(
        Path::new(&out).join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    tonic_prost_build::configure()
        .bytes(".")
        // The call is named Connect, as the generated transport helper would be.
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}

/// Writes an array of (version, description, text) from the files `NNNN_description.sql`.
fn list_migrations() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=migrations");
    let mut names = Vec::new();
    for entry in std::fs::read_dir("migrations")? {
        let name = entry?
            .file_name()
            .into_string()
            .map_err(|name| format!("{} is not UTF-8", name.display()))?;
        if let Some(stem) = name.strip_suffix(".sql") {
            names.push(stem.to_owned());
        }
    }
    names.sort_unstable();
    let mut list = String::from("[\n");
    for name in &names {
        let (version, description) = name
            .split_once('_')
            .ok_or_else(|| format!("migrations/{name}.sql is not named NNNN_description.sql"))?;
        let version: i64 = version.parse()?;
        let description = description.replace('_', " ");
        writeln!(
            list,
            "({version}, {description:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/migrations/{name}.sql\"))),"
        )?;
    }
    list.push(']');
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("migrations.rs"), list)?;
    Ok(())
}
