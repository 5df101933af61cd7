/** Style sheets, which the bundle puts beside the module. */
declare module "*.css";
