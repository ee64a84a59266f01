//! A release can fail on any thread, and the hook is called there.

use std::rc::Rc;

fn listen(driver: &vmm::Driver, told: Rc<()>) {
    driver.on_release_error(move |_| drop(told.clone())); //~ E0277
}

fn main() {}
